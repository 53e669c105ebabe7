//! Queue pairs without a device: where tests and fuzz targets of several crates begin.

#![allow(dead_code, clippy::missing_panics_doc)] // each user needs a part of it

use std::sync::{Arc, Mutex, MutexGuard};

use urds_verbs::Engine;
use urds_verbs::attributes::{self, Attributes, Cap, Field, Link};
use urds_verbs::errors::Rejected;
use urds_verbs::keys::{Domain, Registration};
use urds_verbs::memory::Memory;
use urds_verbs::numbers::{QpKind, QpState};
use urds_verbs::queue_pair::Setup;
use urds_verbs::work::Route;

pub const PD: Domain = Domain {
    own: 1,
    outer: None,
};
/// Access of all kinds.
pub const EVERYTHING: i64 = 31;

const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xA5;

/// Memory between guards.
pub struct Guarded(Mutex<Vec<u8>>);

impl Guarded {
    /// Return so many zeros.
    pub fn new(length: usize) -> Self {
        Self::holding(&vec![0; length])
    }

    pub fn holding(content: &[u8]) -> Self {
        let guard = [GUARD; GUARD_BYTES];
        Self(Mutex::new([&guard, content, &guard].concat()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("no panic before")
    }

    pub fn content(&self) -> Vec<u8> {
        let bytes = self.lock();
        bytes[GUARD_BYTES..bytes.len() - GUARD_BYTES].to_vec()
    }

    /// Return whether the guards are as they were.
    pub fn is_whole(&self) -> bool {
        let bytes = self.lock();
        let (front, rest) = bytes.split_at(GUARD_BYTES);
        let mut guards = front.iter().chain(&rest[rest.len() - GUARD_BYTES..]);
        guards.all(|byte| *byte == GUARD)
    }
}

impl Memory for Guarded {
    fn read(&self, at: usize, to: &mut [u8]) {
        let bytes = self.lock();
        let end = bytes.len() - GUARD_BYTES;
        to.copy_from_slice(&bytes[GUARD_BYTES..end][at..][..to.len()]);
    }

    fn write(&self, at: usize, from: &[u8]) {
        let mut bytes = self.lock();
        let end = bytes.len() - GUARD_BYTES;
        bytes[GUARD_BYTES..end][at..][..from.len()].copy_from_slice(from);
    }
}

/// Register memory in `PD`; return its identity and its key.
pub fn register(
    engine: &mut Engine,
    memory: Arc<dyn Memory>,
    length: usize,
    address: u64,
    access: i64,
) -> (u64, u32) {
    let registration = Registration {
        memory,
        length: length as u64,
        is_readonly: false,
        address: address.into(),
        access,
    };
    let keys = &mut engine.shared.keys;
    keys.register(PD.own, registration, None)
        .expect("a fresh key")
}

/// Return the route to the device whose queue pair has a number.
pub const fn route_of(qpn: u8) -> Route {
    Route {
        gid: [qpn; 16],
        port: 0,
    }
}

pub const fn link_of(mtu_bytes: u32) -> Link {
    Link {
        mtu_bytes,
        payload_bytes_max: None,
        retries: true,
        acks_wait: false,
    }
}

/// Return what makes a queue pair of type RC without a shared queue, one queue for completions.
pub fn setup(qpn: u8, cq: u32, cap: Cap, link: Link) -> Setup {
    Setup {
        qpn: qpn.into(),
        kind: QpKind::Rc,
        domain: PD,
        receive_domain: PD,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap,
        sq_sig_all: true,
        link,
        gid: route_of(qpn).gid,
    }
}

/// Lead a queue pair from RESET to RTS, towards a peer; numbers that are not given are 0.
pub fn lead(
    engine: &mut Engine,
    number: u32,
    peer: Route,
    numbers: &[(Field, i64)],
) -> Result<(), Rejected> {
    let setup = engine.get(number).expect("it is there").setup;
    let mut given = Attributes::new(setup.cap);
    let mut all = *given.numbers();
    for (field, value) in numbers {
        all[*field as usize] = *value;
    }
    given.set_numbers(all);
    given.route = Some(peer);
    let (init, rtr, rts) = match setup.kind {
        QpKind::Rc => (
            attributes::ACCESS_FLAGS,
            attributes::AV
                | attributes::PATH_MTU
                | attributes::DEST_QPN
                | attributes::RQ_PSN
                | attributes::MAX_DEST_RD_ATOMIC
                | attributes::MIN_RNR_TIMER,
            attributes::SQ_PSN
                | attributes::MAX_QP_RD_ATOMIC
                | attributes::RETRY_CNT
                | attributes::RNR_RETRY
                | attributes::TIMEOUT,
        ),
        QpKind::Ud => (attributes::QKEY, 0, attributes::SQ_PSN),
    };
    let init = init | attributes::PKEY_INDEX | attributes::PORT;
    for (state, mask) in [
        (QpState::Init, init),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ] {
        given.state = state;
        engine.modify(number, &given, mask | attributes::STATE)?;
    }
    Ok(())
}
