use contiv_model::key::ObjectType;

use super::*;

fn watch(types: &str, scope: Scope) -> ObjectWatch {
    let cache = SharedCache::default();
    ObjectWatch {
        object_type: Type::by_plural(types).unwrap(),
        scope,
        selector: FieldSelector::default(),
        after: None,
        reads: Reads::new(cache.clone()),
        cache,
    }
}

fn change(object_type: ObjectType, key: &str, revision: i64) -> LinkChange {
    LinkChange { object_type, key: key.to_owned(), revision }
}

#[test]
fn an_object_whose_links_changed_often_is_sent_once() {
    let changes: Vec<LinkChange> = (0..1000)
        .map(|n| change(ObjectType::Netprofile, if n % 2 == 0 { "blue:a" } else { "red:a" }, n))
        .chain([change(ObjectType::Policy, "blue:p", 1000)])
        .collect();
    let keys = |scope| watch("netprofiles", scope).relinked(changes.clone());
    assert_eq!(keys(Scope::All), ["blue:a", "red:a"].map(str::to_owned).into());
    // Objects of other tenants are not encoded.
    let blue = Scope::Tenants(BTreeSet::from(["blue".to_owned()]));
    assert_eq!(keys(blue), ["blue:a"].map(str::to_owned).into());
}

/// An object of the tenant with a body of this size.
fn taken(key: &str, tenant: &str, size: usize) -> Taken {
    let stored = Stored { body: vec![b' '; size], fields: json!({}), tenant: Some(tenant.to_owned()) };
    Taken { key: key.to_owned(), changed: 1, object: Some(Box::new(move || Ok(stored))) }
}

#[test]
fn a_page_ends_after_so_many_bytes() {
    let watch = watch("netprofiles", Scope::Tenants(BTreeSet::from(["t".to_owned()])));
    let half = PAGE_BYTES / 2;
    let page = |objects: Vec<Taken>| {
        let page = watch.encode(objects);
        let keys: Vec<String> = page.keys.into_iter().map(|(key, _)| key).collect();
        (page.events.len(), keys.concat(), page.is_whole)
    };
    let objects = |sizes: &[usize]| {
        ["a", "b", "c"].into_iter().zip(sizes).map(|(key, size)| taken(key, "t", *size)).collect::<Vec<_>>()
    };
    assert_eq!(page(objects(&[half, half, half])), (2, "ab".to_owned(), false));
    assert_eq!(page(objects(&[half, half])), (2, "ab".to_owned(), true));
    assert_eq!(page(objects(&[2 * PAGE_BYTES, 1])), (1, "a".to_owned(), false));
    // What is not sent does not count, and the next page begins after it.
    let mut others = vec![taken("x", "other", 2 * PAGE_BYTES)];
    others.push(Taken { key: "y".to_owned(), changed: 1, object: None });
    others.extend(objects(&[1]));
    assert_eq!(page(others), (1, "xya".to_owned(), true));
    assert_eq!(page(vec![]), (0, String::new(), true));
}
