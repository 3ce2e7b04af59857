//! Maps tables to the stages of [`contiv_model::trace`].

use contiv_model::trace::Stage;

use super::table;

/// Returns the stage that a table belongs to.
pub(crate) fn stage_of(table: u8) -> Stage {
    match table {
        table::INPUT | table::SOURCE | table::HOST_DNAT => Stage::Guard,
        table::GUARD..=table::LINK | table::OWNER..=table::NAME_CHECK => Stage::Guard,
        table::DESTINATION_GROUP | table::STATE..=table::SOURCE_IDENTITY => Stage::Connection,
        table::DESTINATION_OWNER..=table::ON_PATH_SUBNET => Stage::Connection,
        table::OPENER..=table::LOCAL_RECEIVER | table::OPENED_SERVICE => Stage::Connection,
        table::POLICY => Stage::PolicyOut,
        table::POLICY_IN => Stage::PolicyIn,
        table::ACCEPT | table::DSCP | table::SERVICE_SNAT | table::IP | table::DESTINATION => Stage::Forward,
        table::HOST_SNAT | table::NEIGHBOUR..=table::ND_OPTION | table::EXPIRED => Stage::Forward,
        // Tables of services and of translation.
        _ => Stage::Service,
    }
}
