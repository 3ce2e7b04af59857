//! Pages and selections of lists.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::master::Master;

const LIST: &str = "/api/v1/netprofiles/";

fn names(list: &Value) -> Vec<String> {
    names_in(list, "profileName")
}

fn names_in(list: &Value, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|object| object[field].as_str().unwrap().to_owned()).collect()
}

/// Names on each page, in the order of the links.
fn pages(to: SocketAddr, first: &str) -> Vec<Vec<String>> {
    pages_of(to, first, "profileName")
}

fn pages_of(to: SocketAddr, first: &str, field: &str) -> Vec<Vec<String>> {
    let mut pages = vec![];
    let mut next = Some(first.to_owned());
    while let Some(path) = next {
        let answer = get(to, &path).unwrap();
        let link = answer.header("link").map(str::to_owned);
        next = link
            .map(|link| link.strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap().to_owned());
        pages.push(names_in(&answer.good(), field));
    }
    pages
}

#[test]
fn lists_are_paged_and_selected() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    for n in 0..25 {
        let body = json!({"tenantName": "default", "profileName": format!("p{n:02}"), "DSCP": n % 2, "burst": 10 * n});
        post(to, &format!("/api/v1/netprofiles/default:p{n:02}/"), &body).unwrap().good();
    }
    let all = names(&get(to, LIST).unwrap().good());
    assert_eq!(all.len(), 25);

    let paged = pages(to, "/api/v1/netprofiles/?limit=10");
    assert_eq!(paged.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 5]);
    assert_eq!(paged.concat(), all);
    assert_eq!(pages(to, "/api/v1/netprofiles/?limit=25").len(), 1, "no empty page at the end");

    let odd: Vec<_> = all.iter().skip(1).step_by(2).cloned().collect();
    let selected = pages(to, "/api/v1/netprofiles/?limit=5&fieldSelector=DSCP%3D1");
    assert_eq!(selected.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 2]);
    assert_eq!(selected.concat(), odd);
    assert_eq!(pages(to, "/api/v1/netprofiles/?fieldSelector=DSCP=0,burst!=0")[0].len(), 12);
    let one = get(to, "/api/v1/netprofiles/?fieldSelector=key=default:p07").unwrap().good();
    assert_eq!(names(&one), ["p07"]);

    let refused = |query: &str| get(to, &format!("{LIST}?{query}")).unwrap().bad();
    assert_eq!(refused("limit=0"), r#"limit: "0" is not a number above 0"#);
    assert!(refused("fieldSelector=dscp=1").contains(r#"has no field "dscp"; fields are DSCP"#));
    // Large objects make pages shorter.
    for n in 0..5 {
        let body = json!({"tenantName": "default", "contractsGroupName": format!("c{n}"), "contractsType": "provided",
            "contracts": vec!["x".repeat(1000); 400]});
        post(to, &format!("/api/v1/extContractsGroups/default:c{n}/"), &body).unwrap().good();
    }
    let groups = pages_of(to, "/api/v1/extContractsGroups/?limit=100", "contractsGroupName");
    assert_eq!(groups, [vec!["c0", "c1"], vec!["c2", "c3"], vec!["c4"]]);
    assert_eq!(get(to, "/api/v1/extContractsGroups/").unwrap().good().as_array().unwrap().len(), 5);
    // Other parameters are ignored, as by the original.
    assert_eq!(names(&get(to, "/api/v1/netprofiles/?pretty=1").unwrap().good()), all);
}
