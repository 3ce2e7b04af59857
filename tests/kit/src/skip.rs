//! Skipped tests. A skip is printed in a fixed format and logged, so that CI can compare it with its list.

use std::{env, fs::OpenOptions, io::Write as _, process::Command};

/// Names the file that gets one line per skipped test, because test runners capture the output.
pub const LOG_VARIABLE: &str = "CONTIV_SKIP_LOG";

/// Return value of a skipped test.
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

/// Ends the test with `SKIP <test>: <reason>`; CI fails unless `.ci/expected-skips` lists the test.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        return $crate::skip::report(::std::any::type_name_of_val(&here), &::std::format!($($reason)+))
    }};
}

/// Skips the test unless every requirement is met: `needs!(root(), binary("etcd"))`.
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
        // One write of a short line in append mode is atomic between processes.
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

/// Returns the reason if the process is not root.
pub fn root() -> Option<String> {
    (!nix::unistd::geteuid().is_root()).then(|| "needs root (network namespaces)".to_owned())
}

/// Returns the reason if `program` is not installed.
pub fn binary(program: &str) -> Option<String> {
    let found = find_program(program).is_some();
    (!found).then(|| format!("needs the program {program}: run `cargo xtask setup`"))
}

/// Returns the reason if the test must not set the clock of this machine.
pub fn guest() -> Option<String> {
    (!crate::is_guest()).then(|| "sets the wall clock: only in the guests of `cargo xtask vm`".to_owned())
}

/// Searches PATH and the directories of a root login, which PATH of a test runner may lack.
pub(crate) fn find_program(program: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(Into::into))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Returns the reason if the kernel has no interfaces of this type (`ip link add type`).
pub fn link_type(kind: &str) -> Option<String> {
    let mut probe = Command::new("unshare");
    probe.args(["--net", "ip", "link", "add", "probe0", "type", kind]);
    // Another failure is the test's.
    let created = probe.output().ok()?.status.success();
    (!created).then(|| format!("the kernel has no interfaces of type {kind}"))
}

#[cfg(test)]
mod tests {
    use super::test_name;

    #[test]
    fn name_is_that_of_the_test_even_in_a_closure() {
        assert_eq!(test_name("conformance::vxlan::pings::{{closure}}::here"), "conformance::vxlan::pings");
        assert_eq!(test_name("kit::skips::here"), "kit::skips");
    }
}
