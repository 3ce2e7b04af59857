//! `netctl login`.

use std::io::{self, BufRead as _, IsTerminal as _, Write};

use crate::{client::Client, error::Error, token};

/// Requests a token with user name and password, and stores it.
pub fn login(client: &Client, out: &mut dyn Write) -> Result<(), Error> {
    if !client.is_secure() {
        return Err(Error::Refused(
            "login requires a https auth_proxy URL: --netmaster https://HOST:10000".into(),
        ));
    }
    write!(out, "Username: ")?;
    out.flush()?;
    let stdin = io::stdin();
    let mut user = String::new();
    stdin.lock().read_line(&mut user)?;
    let password = if stdin.is_terminal() {
        rpassword::prompt_password("Password: ")?
    } else {
        let mut line = String::new();
        stdin.lock().read_line(&mut line)?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    token::store(&client.login(user.trim(), &password)?, client.netmasters())?;
    Ok(writeln!(out, "Login successful")?)
}
