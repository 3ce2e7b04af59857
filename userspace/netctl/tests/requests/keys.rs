//! Keys in request paths.

use serde_json::json;

use crate::{
    run,
    server::{Reply, Server},
};

#[test]
fn keys_are_percent_encoded_in_every_path() {
    let server = Server::start(|_| Reply::json(&json!({})));
    for (line, asked) in [
        ("tenant create a_b", "POST /api/v1/tenants/a%20b/"),
        ("net rm a?b#c%41", "DELETE /api/v1/networks/default:a%3Fb%23c%2541/"),
        ("net rm a/../b", "DELETE /api/v1/networks/default:a%2F..%2Fb/"),
        ("tenant rm ..", "DELETE /api/v1/tenants/%2E%2E/"),
        ("tenant inspect .", "GET /api/v1/inspect/tenants/%2E/"),
        ("policy rule-rm p:q 1.a", "DELETE /api/v1/rules/default:p:q:1.a/"),
        ("tenant inspect ü", "GET /api/v1/inspect/tenants/%C3%BC/"),
        ("endpoint inspect a/b", "GET /api/v1/inspect/endpoints/a%2Fb/"),
        ("node inspect a/b", "GET /api/v1/inspect/nodes/a%2Fb/"),
        ("node rm a/b", "DELETE /api/v1/nodes/a%2Fb/"),
        ("node accept-store a?b", "POST /api/v1/nodes/a%3Fb/acceptedStore/"),
        ("bgp inspect a;b", "GET /api/v1/inspect/Bgps/a%3Bb/"),
        ("get rule p:1\n", "GET /api/v1/rules/default:p:1%0A/"),
        ("app-profile group-ls a,b", "GET /api/v1/appProfiles/default:a%2Cb/"),
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (_, stderr, code) = run(&server, &words);
        assert_eq!((stderr.as_str(), code), ("", 0), "{line}");
        assert_eq!(server.take().pop().unwrap().line, asked, "{line}");
    }
}
