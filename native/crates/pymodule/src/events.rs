//! Events of the plane as tuples: the name of the record, then its fields.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use urds_dataplane::events::{Control, Event};
use urds_dataplane::state::PathId;

use crate::addresses::pack;
use crate::values;

/// Return an event as a tuple; `None` if its path has been removed.
pub fn event_tuple<'py>(
    py: Python<'py>,
    event: Event,
    path_of: impl Fn(PathId) -> Option<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let id = path_id(&event);
    let path = id.and_then(path_of);
    if path.is_none() && id.is_some() {
        return Ok(None);
    }
    let tuple = match event {
        Event::ConnectWanted { .. } => ("ConnectWanted", path).into_pyobject(py),
        Event::PeerRestarted { .. } => ("PeerRestarted", path).into_pyobject(py),
        Event::LingerOver {
            unsent,
            unacknowledged,
            ..
        } => ("LingerOver", path, unsent, unacknowledged).into_pyobject(py),
        Event::FirstFrame {
            attachment,
            generation,
            ..
        } => ("FirstFrame", path, attachment, generation).into_pyobject(py),
        Event::Down {
            reason,
            errno,
            frames,
            attachment,
            ..
        } => {
            let reason = values::down_reason(reason);
            ("Down", path, reason, errno, frames, attachment).into_pyobject(py)
        }
        Event::Control(control) => control_tuple(py, &control, path),
        Event::LocalMapChanged { local } => {
            ("LocalMapChanged", pack(py, &local), local.scope).into_pyobject(py)
        }
        Event::Resumed { path } => ("Resumed", path.to_u64()).into_pyobject(py),
        Event::GiveUp { path, mailbox } => {
            ("GiveUp", path.to_u64(), mailbox.to_u64()).into_pyobject(py)
        }
        Event::LingerEnded { path, mailbox } => {
            ("LingerEnded", path.to_u64(), mailbox.to_u64()).into_pyobject(py)
        }
        Event::Left { mailbox } => ("Left", mailbox.to_u64()).into_pyobject(py),
        Event::ClientError { mailbox, what } => {
            ("ClientError", mailbox.to_u64(), what).into_pyobject(py)
        }
        Event::RouteWanted { mailbox, peer } => {
            ("RouteWanted", mailbox.to_u64(), pack(py, &peer), peer.scope).into_pyobject(py)
        }
        Event::Ready {
            descriptor,
            interest,
        } => ("Ready", descriptor, interest.0).into_pyobject(py),
    };
    tuple.map(Some)
}

/// Return the path of an event, if it has one.
fn path_id(event: &Event) -> Option<PathId> {
    match event {
        Event::ConnectWanted { path }
        | Event::FirstFrame { path, .. }
        | Event::Down { path, .. }
        | Event::LingerOver { path, .. }
        | Event::PeerRestarted { path } => Some(*path),
        Event::Control(control) => Some(control.path),
        Event::LocalMapChanged { .. }
        | Event::Resumed { .. }
        | Event::GiveUp { .. }
        | Event::LingerEnded { .. }
        | Event::Left { .. }
        | Event::ClientError { .. }
        | Event::RouteWanted { .. }
        | Event::Ready { .. } => None,
    }
}

fn control_tuple<'py>(
    py: Python<'py>,
    control: &Control,
    path: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTuple>> {
    (
        "Control",
        path,
        control.sequence,
        control.acknowledgement,
        control.source_port,
        control.target_port,
        control.extension.as_slice(),
        control.payload.as_slice(),
        control.attachment,
    )
        .into_pyobject(py)
}
