//! Multipart requests: the flows, groups, ports and statistics of a switch.

use super::{Connection, Error};
use crate::flow::{FlowFilter, FlowStats};
use crate::group::Group;
use crate::message::Body;
use crate::multipart::{Aggregate, Desc, Groups, MultipartRequest, Parts, TableStats, UnknownFlow};
use crate::port::PortDesc;

impl Connection {
    /// Sends a multipart request and returns the content of all reply messages. `what` names the request in errors.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`], and [`Error::Unexpected`] for a reply of another type.
    pub async fn multipart(&self, request: MultipartRequest, what: &str) -> Result<Vec<Parts>, Error> {
        let mut all = vec![];
        self.each_part(request, what, |parts| {
            all.push(parts);
            Ok(())
        })
        .await?;
        Ok(all)
    }

    async fn each_part(
        &self,
        request: MultipartRequest,
        what: &str,
        mut visit: impl FnMut(Parts) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (_, mut replies) =
            self.send(std::iter::once(Body::MultipartRequest(request)), |_| what.into())?;
        loop {
            match self.reply(&mut replies, what).await?.body {
                Body::MultipartReply(reply) => {
                    visit(reply.parts)?;
                    if !reply.more {
                        return Ok(());
                    }
                }
                Body::Error(error) => return Err(self.refused(what, error)),
                _ => return Err(self.unexpected(what)),
            }
        }
    }

    /// Returns the flows that `filter` selects, with their counters. Flows that this library does not decode are left out:
    /// [`Connection::visit_flows`] returns them.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn dump_flows(&self, filter: FlowFilter) -> Result<Vec<FlowStats>, Error> {
        let mut all = vec![];
        self.visit_flows(filter, |flow| all.push(flow)).await?;
        Ok(all)
    }

    /// Calls `visit` for each flow that `filter` selects, and returns those that this library does not decode. Unlike
    /// [`Connection::dump_flows`] it keeps no others.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`]. `visit` may have been called before.
    pub async fn visit_flows(
        &self,
        filter: FlowFilter,
        mut visit: impl FnMut(FlowStats),
    ) -> Result<Vec<UnknownFlow>, Error> {
        let what = "dump flows";
        let request = MultipartRequest::Flows(filter);
        let mut unknown = vec![];
        self.each_part(request, what, |parts| match parts {
            Parts::Flows(flows) => {
                flows.known.into_iter().for_each(&mut visit);
                unknown.extend(flows.unknown);
                Ok(())
            }
            _ => Err(self.unexpected(what)),
        })
        .await?;
        Ok(unknown)
    }

    /// Returns the groups. Those that this library does not decode are left out: [`Connection::all_groups`] returns them.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn dump_groups(&self) -> Result<Vec<Group>, Error> {
        Ok(self.all_groups().await?.known)
    }

    /// Returns the groups, and those that this library does not decode.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn all_groups(&self) -> Result<Groups, Error> {
        let what = "dump groups";
        let mut all = Groups::default();
        self.each_part(MultipartRequest::Groups, what, |parts| match parts {
            Parts::Groups(groups) => {
                all.known.extend(groups.known);
                all.unknown.extend(groups.unknown);
                Ok(())
            }
            _ => Err(self.unexpected(what)),
        })
        .await?;
        Ok(all)
    }

    /// Returns the descriptions of all ports.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn ports(&self) -> Result<Vec<PortDesc>, Error> {
        let what = "list ports";
        self.list(MultipartRequest::Ports, what, |parts| {
            if let Parts::Ports(ports) = parts { Some(ports) } else { None }
        })
        .await
    }

    /// Returns the statistics of all tables.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn tables(&self) -> Result<Vec<TableStats>, Error> {
        let what = "read table statistics";
        self.list(MultipartRequest::Tables, what, |parts| {
            if let Parts::Tables(tables) = parts { Some(tables) } else { None }
        })
        .await
    }

    async fn list<T>(
        &self,
        request: MultipartRequest,
        what: &str,
        pick: impl Fn(Parts) -> Option<Vec<T>>,
    ) -> Result<Vec<T>, Error> {
        let mut all = vec![];
        for parts in self.multipart(request, what).await? {
            all.extend(pick(parts).ok_or_else(|| self.unexpected(what))?);
        }
        Ok(all)
    }

    /// Returns the counters summed over the flows that `filter` selects.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn aggregate(&self, filter: FlowFilter) -> Result<Aggregate, Error> {
        let what = "read aggregate flow statistics";
        match self.multipart(MultipartRequest::Aggregate(filter), what).await?.pop() {
            Some(Parts::Aggregate(sum)) => Ok(sum),
            _ => Err(self.unexpected(what)),
        }
    }

    /// Returns the description of the switch.
    ///
    /// # Errors
    ///
    /// As [`Connection::multipart`].
    pub async fn describe(&self) -> Result<Desc, Error> {
        let what = "read switch description";
        match self.multipart(MultipartRequest::Desc, what).await?.pop() {
            Some(Parts::Desc(desc)) => Ok(desc),
            _ => Err(self.unexpected(what)),
        }
    }
}
