//! A skip is a fact that CI must agree to, so it is printed in one fixed form and counted.

use std::{env, fs::OpenOptions, io::Write as _};

/// The file that collects one line per skipped test, for a runner that cannot see captured output.
pub const LOG_VARIABLE: &str = "CONTIV_SKIP_LOG";

/// What a skipped test returns.
pub trait Skipped {
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<E> Skipped for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// Leaves the test with `SKIP <test>: <reason>`; CI fails unless `.ci/expected-skips` lists the test.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        return $crate::skip::report(::std::any::type_name_of_val(&here), &::std::format!($($reason)+))
    }};
}

/// Skips the test unless every need is met: `needs!(root(), binary("etcd"))`.
#[macro_export]
macro_rules! needs {
    ($($need:ident ( $($argument:expr),* )),+ $(,)?) => {
        $(if let ::std::option::Option::Some(reason) = $crate::skip::$need($($argument),*) {
            $crate::skip!("{reason}")
        })+
    };
}

/// Called by `skip!` with the type name of a function inside the test.
pub fn report<R: Skipped>(function: &str, reason: &str) -> R {
    let line = format!("SKIP {}: {}", test_name(function), reason.replace('\n', " "));
    println!("{line}");
    eprintln!("{line}");
    if let Some(path) = env::var_os(LOG_VARIABLE) {
        // One write of a short line to a file in append mode: test processes do not tear each other's lines.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut log| log.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            eprintln!("{} = {}: {error}", LOG_VARIABLE, path.display());
        }
    }
    R::skipped()
}

fn test_name(function: &str) -> String {
    function.trim_end_matches("::here").replace("::{{closure}}", "")
}

/// Why the test cannot act as root here, if so.
pub fn root() -> Option<String> {
    (!nix::unistd::geteuid().is_root()).then(|| "needs root (network namespaces)".to_owned())
}

/// Why `program` cannot be run here, if so.
pub fn binary(program: &str) -> Option<String> {
    let found = find_program(program).is_some();
    (!found).then(|| format!("needs the program {program}: run `cargo xtask setup`"))
}

/// Looks where a root login looks, too: test runners often have a shorter PATH.
pub(crate) fn find_program(program: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(Into::into))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::test_name;

    #[test]
    fn the_name_is_that_of_the_test_also_in_a_closure() {
        assert_eq!(test_name("conformance::vxlan::pings::{{closure}}::here"), "conformance::vxlan::pings");
        assert_eq!(test_name("kit::skips::here"), "kit::skips");
    }
}
