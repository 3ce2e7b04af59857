//! The results that the oracle allows for a frame.
//!
//! The oracle is the fake datapath, which evaluates policies and services by `contiv-model`. The model does not define which
//! backend a service chooses: each of them is tried, and the oracle continues with the one that the datapath chose.

use contiv_model::service::Readiness;
use netplugin::datapath::{
    Backend, Desired, Object, ObjectId, Service,
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
    /// A service that has one backend in `switch`.
    replaced: Option<ObjectId>,
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

    /// Returns the possible results of a frame. If it is for a service, there is one for each backend of these states. If there is
    /// only one, the oracle remembers it at once: anything else is an error.
    pub(crate) fn possible(
        &self,
        from: &Origin,
        frame: &[u8],
        service: Option<&Service>,
        states: &[Readiness],
    ) -> Vec<Possible> {
        let to_backends = |service: &Service| -> Vec<Possible> {
            let possible = service.backends.iter().filter(|backend| states.contains(&backend.readiness));
            let by = |backend: &Backend| {
                let switch = self.switch.copy();
                let backends = vec![Backend { readiness: Readiness::Ready, ..*backend }];
                let one = Object::Service(Service { backends, ..service.clone() });
                let replaced = Some(one.id());
                switch.put_object(one);
                Possible { replaced, ..delivered(&switch, from, frame) }
            };
            possible.map(by).collect()
        };
        let mut possible = service.map(to_backends).unwrap_or_default();
        let is_ready =
            |service: &Service| service.backends.iter().any(|one| one.readiness == Readiness::Ready);
        if !service.is_some_and(is_ready) {
            possible.push(delivered(&self.switch, from, frame));
        }
        possible
    }

    /// Returns the results of a frame whose connection may have ended: it is dropped, or begins a new one.
    pub(crate) fn possible_again(
        &self,
        from: &Origin,
        frame: &[u8],
        service: Option<&Service>,
        states: &[Readiness],
    ) -> Vec<Possible> {
        let ended = self.ended(from, frame);
        let mut possible = ended.possible(from, frame, service, states);
        possible.push(ended.dropped());
        possible
    }

    /// Returns the result of a frame that is dropped, and changes nothing.
    pub(crate) fn dropped(&self) -> Possible {
        Possible { deliveries: vec![], switch: self.switch.copy(), replaced: None }
    }

    /// The oracle without the connection of a frame.
    pub(crate) fn ended(&self, from: &Origin, frame: &[u8]) -> Oracle {
        let switch = self.switch.copy();
        switch.end_connection(frame, from);
        Oracle { switch, desired: self.desired.clone() }
    }

    /// Returns the result of a frame that belongs to no connection.
    pub(crate) fn unconnected(&self, from: &Origin, frame: &[u8]) -> Possible {
        let switch = Switch::default();
        put(&switch, &self.desired);
        Possible { switch: self.switch.clone(), ..delivered(&switch, from, frame) }
    }

    /// Continues with one of the possible results.
    pub(crate) fn adopt(&mut self, possible: Possible) {
        self.switch = possible.switch;
        if let Some(service) = possible.replaced.and_then(|id| self.desired.get(&id)) {
            self.switch.put_object(service.clone());
        }
    }
}

fn delivered(switch: &Switch, from: &Origin, frame: &[u8]) -> Possible {
    let mut deliveries = switch.deliver(frame, from);
    deliveries.sort();
    Possible { deliveries, switch: switch.clone(), replaced: None }
}

fn put(switch: &Switch, desired: &Desired) {
    for (_, object) in desired.iter() {
        switch.put_object(object.clone());
    }
}
