//! Checks the OpenAPI document with a validator, and the API against the document with schemathesis, which generates valid and
//! invalid requests.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::master::{Master, Options, Store};
use serde_json::Value;
use testkit::{etcd::Etcd, needs, scratch_dir, skip};

/// Minimum number of requests.
const CASES: u64 = 2_000;
/// Examples per operation; there are about a hundred operations.
const EXAMPLES: &str = "30";
/// Fixed seed: every run sends the same requests.
const SEED: &str = "20261121";
/// Maximum resident memory of netmaster after the test in KiB; it starts with about 30 MB.
const MEMORY: u64 = 200 << 10;
/// Checks that apply to an API whose failures have status 500. `errors_have_text` is defined in hooks.py.
const CHECKS: &str = "errors_have_text,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Path of a program in the virtual environment of `cargo xtask setup`.
fn python(program: &str) -> Option<PathBuf> {
    Some(workspace().join(".tools/python/bin").join(program)).filter(|path| path.is_file())
}

/// Runs a command that must succeed; returns its output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let result = command.output().unwrap();
    let output =
        format!("{}{}", String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
    assert!(result.status.success(), "{command:?}: {}\n{output}", result.status);
    output
}

fn files(pid: nix::unistd::Pid) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn memory(pid: nix::unistd::Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn api_conforms_to_its_openapi_document() {
    needs!(binary("etcd"));
    let _machine = testkit::shared();
    let (Some(schemathesis), Some(interpreter)) = (python("schemathesis"), python("python")) else {
        skip!("needs schemathesis: run `cargo xtask setup`");
    };
    let etcd = Etcd::start().unwrap();
    let mut master =
        Master::start(Options::alone(Store::Etcd { endpoint: etcd.endpoint() }).unwrap()).unwrap();
    let folder = scratch_dir("openapi").unwrap();
    let document = master.client().get("/api/v1/openapi.json").unwrap();
    assert_eq!(document.status, 200);
    let file = folder.path().join("openapi.json");
    fs::write(&file, &document.body).unwrap();
    run(Command::new(interpreter).args(["-m", "openapi_spec_validator", "--schema", "3.1"]).arg(&file));

    let pid = master.process().pid();
    let files_before = files(pid);
    let responses = folder.path().join("responses.json");
    let output = run(Command::new(schemathesis)
        .current_dir(folder.path())
        .env("PYTHONPATH", workspace().join("tests/e2e/schemathesis"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("RESPONSES", &responses)
        .args(["run", "--url", &format!("http://{}/", master.client().server()), "openapi.json"])
        .args(["--checks", CHECKS, "--phases", "examples,fuzzing", "--max-examples", EXAMPLES])
        // Its default of 10 s is too short when other programs take the processors.
        .args(["--request-timeout", "120"])
        .args([
            "--seed",
            SEED,
            "--generation-database",
            "none",
            "--no-shrink",
            "--warnings",
            "off",
            "--no-color",
        ]));

    let responses: Vec<(String, String, u16, u64)> =
        serde_json::from_slice(&fs::read(responses).unwrap()).unwrap();
    let cases: u64 = responses.iter().map(|(.., n)| n).sum();
    println!("{cases} cases");
    assert!(cases >= CASES, "{cases} cases\n{output}");
    // Requests reached the API: every list was read, and objects of half of the types were created. Which ones is random, as what
    // a request finds depends on those before it: 9 of 14 have been seen.
    let good: BTreeSet<(&str, &str)> = responses
        .iter()
        .filter(|(.., status, _)| *status == 200)
        .map(|(method, path, ..)| (&**method, &**path))
        .collect();
    let document: Value = serde_json::from_str(&document.body).unwrap();
    let paths = || document["paths"].as_object().unwrap().keys().map(String::as_str);
    let unread: Vec<&str> =
        paths().filter(|path| path.ends_with("s/") && !good.contains(&("GET", path))).collect();
    assert_eq!(unread, [""; 0], "never returned 200\n{output}");
    let objects = || {
        paths().filter(|path| {
            path.starts_with("/api/v1/") && !path.contains("inspect") && path.ends_with("{key}/")
        })
    };
    let created =
        objects().filter(|path| ["POST", "PUT"].iter().any(|method| good.contains(&(*method, path)))).count();
    assert!(
        created * 2 >= objects().count(),
        "{created} of {} types were created\n{output}",
        objects().count()
    );

    assert!(master.process().ended().unwrap().is_none(), "{}", master.tail());
    let log = master.process().log();
    assert!(!log.contains("panicked"), "{}", master.tail());
    let closed = || Ok((files(pid) <= files_before).then_some(()));
    testkit::wait_until(std::time::Duration::from_secs(20), "connections are closed", closed).unwrap();
    let memory = memory(pid);
    println!("{memory} KiB");
    assert!(memory < MEMORY, "{memory} KiB");
    master.stop().unwrap();
}
