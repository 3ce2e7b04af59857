//! One list of scenarios, run against a real etcd and against the embedded store: both must pass.

mod access;
mod crash;
mod election;
mod etcdctl;
mod file;
mod kv;
mod lease;
mod lost;
mod peer;
mod proxy;
mod quota;
mod request_metrics;
mod same_answers;
mod slow_network;
mod socket;
mod txn;
mod watch;
mod watching;

use peer::{Kind, Peer};
use std::time::Duration;

/// For one scenario, start of the peer included; far more than any needs.
const LIMIT: Duration = Duration::from_secs(300);

macro_rules! scenarios {
    ($($module:ident :: $name:ident),* $(,)?) => {
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> {
                testkit::needs!(binary("etcd"));
                let mut peer = super::Peer::start(super::Kind::Etcd)?;
                tokio::time::timeout(super::LIMIT, super::$module::$name(&mut peer)).await?
            })*
        }
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> {
                let mut peer = super::Peer::start(super::Kind::Embedded)?;
                tokio::time::timeout(super::LIMIT, super::$module::$name(&mut peer)).await?
            })*
        }
    };
}

scenarios! {
    request_metrics::requests_are_counted_by_operation_and_result,
    kv::every_write_is_one_revision,
    kv::ranges_are_cut_and_sorted,
    kv::old_revisions_can_be_read,
    kv::puts_and_deletes_return_previous_values,
    kv::a_listing_has_many_pages_and_one_revision,
    txn::every_compare_target,
    txn::branches_nest_and_see_their_own_writes,
    txn::refusals_have_the_same_code_and_text,
    txn::a_commit_is_all_or_nothing,
    txn::sixty_four_writers_lose_no_update,
    watch::a_prefix_from_an_old_revision,
    watch::many_watches_on_one_stream,
    watch::filters_and_previous_values,
    watch::a_compacted_start_is_canceled,
    watch::progress_comes_after_what_it_covers,
    watch::a_revision_is_not_torn,
    watch::large_responses_are_divided,
    watching::a_snapshot_and_then_changes,
    watching::a_snapshot_in_pages,
    watching::a_snapshot_without_some_values_and_keys,
    watching::a_snapshot_in_pages_begins_again_after_a_compaction,
    watching::compaction_is_reported_as_a_difference,
    watching::a_restart_misses_and_repeats_nothing,
    watching::a_watch_continues_after_a_restart,
    watching::a_large_history_comes_in_whole_revisions,
    watching::a_watch_keeps_a_part_of_the_keys,
    watching::a_restored_store_is_listed_again,
    kv::large_values_are_listed,
    watching::the_status_reports_an_unavailable_store,
    lease::a_lease_ends_with_its_keys_in_one_revision,
    lease::keep_alive_keeps_alive,
    lease::revoking_and_asking,
    lease::a_registration_outlives_its_ttl_and_a_lost_lease,
    lease::a_registration_returns_after_another_process_held_the_key,
    lease::a_registration_survives_a_restart,
    lease::the_keys_of_a_registration_share_a_lease,
    election::one_leads_at_a_time_and_resigning_hands_over,
    election::a_dead_leader_is_replaced_before_its_lease_ends_and_fenced,
    election::a_leader_without_a_store_stops_in_time,
    election::a_deleted_key_deposes,
    election::a_stalled_store_deposes_no_leader,
    election::a_busy_process_stays_leader,
    slow_network::a_slow_network_deposes_no_leader,
    slow_network::new_connections_on_a_slow_network,
    lost::a_commit_whose_answer_is_lost_is_found,
    lost::a_large_commit_whose_answer_is_lost_is_found,
    lost::a_lost_commit_is_applied_once,
    lost::a_conflict_whose_answer_is_late_is_a_conflict,
    lost::an_unknown_outcome_is_resolved_before_the_next_commit,
    quota::a_compaction_removes_old_versions_only,
    crash::nothing_acknowledged_is_lost,
}
