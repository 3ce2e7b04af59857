//! The example of the README, with a running Open vSwitch.

use std::{fs, path::Path};

use anyhow::Result;
use testkit::needs;

use crate::switch::with_bridge;

#[expect(dead_code, reason = "a test calls what main calls")]
#[path = "../../examples/program.rs"]
mod program;

#[test]
fn the_readme_has_the_example() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = fs::read_to_string(folder.join("examples/program.rs")).unwrap();
    let (_about, code) = example.split_once("\n\n").unwrap();
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(readme.contains(code), "copy examples/program.rs to README.md");
}

#[test]
fn the_example_programs_a_bridge() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofexample", async |switch, _connection| {
        let target = format!("unix:{}/br0.mgmt", switch.directory().display());
        let mut lines = program::program(&target).await.map_err(|error| anyhow::anyhow!("{error}"))?;
        lines.sort();
        assert_eq!(
            lines,
            [
                "group_id=1,type=select,bucket=weight:50,actions=output:2,bucket=weight:50,actions=output:3",
                "table=0, priority=0 actions=drop",
                "table=0, priority=100,ip,in_port=1,nw_dst=10.0.0.1 actions=group:1",
            ]
        );
        let text = switch.ofctl("dump-flows", "br0", &["--no-stats"])?;
        assert!(text.contains("priority=100,ip,in_port=1,nw_dst=10.0.0.1 actions=group:1"), "{text}");
        Ok(())
    })
}
