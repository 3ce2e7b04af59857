//! Services that come while their clients send.

use std::time::Duration;

use anyhow::Result;
use testkit::wait_until;

use crate::{
    harness::Harness,
    scenarios::services::{arrival, ready, request, service, world},
    topology::{Net, pod},
};

const SOON: Duration = Duration::from_secs(5);
const PORT: u16 = 4000;

/// A service that is created gets what a client has sent to its address, and goes on to send by the same port: the flow that began
/// while the address was unused ends, although it is never idle.
pub(crate) fn a_new_service_gets_the_packets_of_existing_flows<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        // Copies to an unknown address depend on the datapath.
        let _copies = world.outcome(&pod("pa"), &request(PORT).build())?;
        world.set(service(&net, &ready(&[2]))?)?;
        wait_until(SOON, "a datagram at the backend", || {
            let came = world.outcome(&pod("pa"), &request(PORT).build())?;
            Ok((came == [arrival(&net, 2, PORT)]).then_some(()))
        })?;
        world.is_answered(&net, 2, PORT)?;
        world.check_in_sync()?;
    }
    Ok(())
}
