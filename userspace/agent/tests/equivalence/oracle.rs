//! The results that the oracle allows for a frame.
//!
//! The oracle is the fake datapath, which evaluates policies and services by `contiv-model`. The model does not define which
//! backend a service chooses: each of them is tried, and the oracle continues with the one that the datapath chose.

use contiv_model::service::Readiness;
use netplugin::datapath::{
    Backend, Desired, Object, Service,
    fake::{Delivery, Origin, Switch},
};

pub(crate) struct Oracle {
    switch: Switch,
    desired: Desired,
}

/// A result, and what the oracle remembers after it.
pub(crate) struct Possible {
    pub(crate) deliveries: Vec<Delivery>,
    switch: Switch,
}

impl Oracle {
    pub(crate) fn new(desired: Desired) -> Oracle {
        let switch = Switch::default();
        put(&switch, &desired);
        Oracle { switch, desired }
    }

    /// Changes the objects; connections stay.
    pub(crate) fn change(&mut self, desired: Desired) {
        for (id, _) in self.desired.iter().filter(|(id, _)| desired.get(id).is_none()) {
            self.switch.drop_object(id);
        }
        put(&self.switch, &desired);
        self.desired = desired;
    }

    /// Returns the possible results of a frame. If it is for a service, there is one for each backend of these states.
    pub(crate) fn possible(
        &self,
        from: &Origin,
        frame: &[u8],
        service: Option<&Service>,
        states: &[Readiness],
    ) -> Vec<Possible> {
        let with = |switch: Switch| {
            let mut deliveries = switch.deliver(frame, from);
            deliveries.sort();
            Possible { deliveries, switch }
        };
        let to_backends = |service: &Service| -> Vec<Possible> {
            let possible = service.backends.iter().filter(|backend| states.contains(&backend.readiness));
            let by = |backend: &Backend| {
                let switch = self.switch.copy();
                let backends = vec![Backend { readiness: Readiness::Ready, ..*backend }];
                switch.put_object(Object::Service(Service { backends, ..service.clone() }));
                with(switch)
            };
            possible.map(by).collect()
        };
        let mut possible = service.map(to_backends).unwrap_or_default();
        if possible.is_empty() {
            possible.push(with(self.switch.copy()));
        }
        possible
    }

    /// Returns the result of a frame that belongs to no connection.
    pub(crate) fn unconnected(&self, from: &Origin, frame: &[u8]) -> Possible {
        let switch = Switch::default();
        put(&switch, &self.desired);
        let mut deliveries = switch.deliver(frame, from);
        deliveries.sort();
        Possible { deliveries, switch: self.switch.clone() }
    }

    /// Continues with one of the possible results.
    pub(crate) fn adopt(&mut self, possible: Possible) {
        self.switch = possible.switch;
        put(&self.switch, &self.desired);
    }
}

fn put(switch: &Switch, desired: &Desired) {
    for (_, object) in desired.iter() {
        switch.put_object(object.clone());
    }
}
