//! Attributes and states of a queue pair, and what a modify checks and sets.
//!
//! The tables and sentences are those of `urds.verbs.engine.attributes`.

use crate::errors::Rejected;
use crate::numbers::{QpKind, QpState};
use crate::work::Route;

/// What the path between two queue pairs guarantees; nothing is lost on it.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub mtu_bytes: u32,
    /// The longest payload that may arrive, where the peer cuts as it likes; else the MTU.
    pub payload_bytes_max: Option<u32>,
    /// A packet to a queue pair that is not there is dropped, so unanswered ones are repeated.
    pub retries: bool,
    /// Acknowledgements ride on packets that go to the peer anyway; who moves the packets says
    /// when one has to go alone (`QueuePair::hurry_ack`).
    pub acks_wait: bool,
}

/// Capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    pub max_send_wr: i64,
    pub max_recv_wr: i64,
    pub max_send_sge: i64,
    pub max_recv_sge: i64,
    pub max_inline_data: i64,
}

pub const STATE: u32 = 1 << 0;
pub const CUR_STATE: u32 = 1 << 1;
pub const ACCESS_FLAGS: u32 = 1 << 3;
pub const PKEY_INDEX: u32 = 1 << 4;
pub const PORT: u32 = 1 << 5;
pub const QKEY: u32 = 1 << 6;
pub const AV: u32 = 1 << 7;
pub const PATH_MTU: u32 = 1 << 8;
pub const TIMEOUT: u32 = 1 << 9;
pub const RETRY_CNT: u32 = 1 << 10;
pub const RNR_RETRY: u32 = 1 << 11;
pub const RQ_PSN: u32 = 1 << 12;
pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
pub const MIN_RNR_TIMER: u32 = 1 << 15;
pub const SQ_PSN: u32 = 1 << 16;
pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
pub const CAP: u32 = 1 << 19;
pub const DEST_QPN: u32 = 1 << 20;

const NAMES: [(u32, &str); 18] = [
    (STATE, "STATE"),
    (CUR_STATE, "CUR_STATE"),
    (ACCESS_FLAGS, "ACCESS_FLAGS"),
    (PKEY_INDEX, "PKEY_INDEX"),
    (PORT, "PORT"),
    (QKEY, "QKEY"),
    (AV, "AV"),
    (PATH_MTU, "PATH_MTU"),
    (TIMEOUT, "TIMEOUT"),
    (RETRY_CNT, "RETRY_CNT"),
    (RNR_RETRY, "RNR_RETRY"),
    (RQ_PSN, "RQ_PSN"),
    (MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
    (MIN_RNR_TIMER, "MIN_RNR_TIMER"),
    (SQ_PSN, "SQ_PSN"),
    (MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
    (CAP, "CAP"),
    (DEST_QPN, "DEST_QPN"),
];

pub const READS_MAX: i64 = 128;
const PSN_MAX: i64 = 0xFF_FFFF;

/// Place of an attribute among the numbers of `Attributes`.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Field {
    AccessFlags,
    PkeyIndex,
    Port,
    Qkey,
    Timeout,
    RetryCnt,
    RnrRetry,
    RqPsn,
    MaxRdAtomic,
    MinRnrTimer,
    SqPsn,
    MaxDestRdAtomic,
    DestQpn,
}

/// Mask bit, name and highest value of each number, in the order of `Field`.
pub const FIELDS: [(u32, &str, Option<i64>); 13] = [
    (ACCESS_FLAGS, "qp_access_flags", None),
    (PKEY_INDEX, "pkey_index", Some(0xFFFF)),
    (PORT, "port_num", Some(0xFF)),
    (QKEY, "qkey", Some(0xFFFF_FFFF)),
    (TIMEOUT, "timeout", Some(31)),
    (RETRY_CNT, "retry_cnt", Some(7)),
    (RNR_RETRY, "rnr_retry", Some(7)),
    (RQ_PSN, "rq_psn", Some(PSN_MAX)),
    (MAX_QP_RD_ATOMIC, "max_rd_atomic", Some(READS_MAX)),
    (MIN_RNR_TIMER, "min_rnr_timer", Some(31)),
    (SQ_PSN, "sq_psn", Some(PSN_MAX)),
    (MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", Some(READS_MAX)),
    (DEST_QPN, "dest_qp_num", Some(PSN_MAX)),
];

/// Attributes of a queue pair, or those that a modify brings.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub state: QpState,
    pub current: QpState,
    numbers: [i64; FIELDS.len()],
    pub path_mtu: Option<i64>,
    pub route: Option<Route>,
    pub cap: Cap,
}

impl Attributes {
    /// Return the attributes of a queue pair that begins.
    pub fn new(cap: Cap) -> Self {
        let mut numbers = [0; FIELDS.len()];
        numbers[Field::Port as usize] = 1;
        Self {
            state: QpState::Reset,
            current: QpState::Reset,
            numbers,
            path_mtu: None,
            route: None,
            cap,
        }
    }

    pub fn get(&self, field: Field) -> i64 {
        self.numbers[field as usize]
    }

    /// Return a value that was checked to fit 32 bits.
    pub fn word(&self, field: Field) -> u32 {
        u32::try_from(self.get(field)).unwrap_or(u32::MAX)
    }

    /// Return all numbers, in the order of `FIELDS`.
    pub fn numbers(&self) -> &[i64; FIELDS.len()] {
        &self.numbers
    }

    pub fn set_numbers(&mut self, numbers: [i64; FIELDS.len()]) {
        self.numbers = numbers;
    }

    /// Check the values that a mask names.
    ///
    /// # Errors
    /// EINVAL.
    pub fn check(&self, mask: u32, state: QpState) -> Result<(), Rejected> {
        if mask & CUR_STATE != 0 && self.current != state {
            return Err(Rejected::invalid(format!(
                "cur_qp_state {}, the state is {}",
                self.current.name(),
                state.name()
            )));
        }
        for ((bit, name, most), value) in FIELDS.iter().zip(self.numbers) {
            if let Some(most) = most
                && mask & bit != 0
                && !(0..=*most).contains(&value)
            {
                let detail = format!("{name} {value}, from 0 to {most}");
                return Err(Rejected::invalid(detail));
            }
        }
        if mask & PATH_MTU != 0
            && let Some(code) = self.path_mtu
            && !(1..=5).contains(&code)
        {
            let detail = format!("path_mtu {code}, a code from 1 to 5");
            return Err(Rejected::invalid(detail));
        }
        Ok(())
    }

    /// Copy the values that a mask names.
    pub fn adopt(&mut self, given: &Self, mask: u32) {
        for (place, (bit, ..)) in FIELDS.iter().enumerate() {
            if mask & bit != 0 {
                self.numbers[place] = given.numbers[place];
            }
        }
        if mask & AV != 0 {
            self.route = given.route;
        }
        if mask & PATH_MTU != 0 {
            self.path_mtu = given.path_mtu;
        }
    }
}

const RIGHTS: u32 = PKEY_INDEX | PORT | ACCESS_FLAGS;
const DATAGRAM_RIGHTS: u32 = PKEY_INDEX | PORT | QKEY;
const RUNNING: u32 = CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER;
const DATAGRAM_RUNNING: u32 = CUR_STATE | QKEY;

/// Return the bits that a transition requires and allows, `None` if there is no such one.
fn transition(kind: QpKind, old: QpState, new: QpState) -> Option<(u32, u32)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    if matches!(new, Reset | Err) {
        return Some((0, 0));
    }
    let found = match (kind, old, new) {
        (_, Rts, Sqd) => (0, 0),
        (QpKind::Rc, Reset, Init) => (RIGHTS, 0),
        (QpKind::Rc, Init, Init) => (0, RIGHTS),
        (QpKind::Rc, Init, Rtr) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ACCESS_FLAGS | PKEY_INDEX,
        ),
        (QpKind::Rc, Rtr, Rts) => (
            SQ_PSN | MAX_QP_RD_ATOMIC | RETRY_CNT | RNR_RETRY | TIMEOUT,
            RUNNING,
        ),
        (QpKind::Rc, Rts | Sqd, Rts) => (0, RUNNING),
        (QpKind::Rc, Sqd, Sqd) => (
            0,
            RIGHTS
                | AV
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | RETRY_CNT
                | RNR_RETRY
                | TIMEOUT
                | MIN_RNR_TIMER,
        ),
        (QpKind::Ud, Reset, Init) => (DATAGRAM_RIGHTS, 0),
        (QpKind::Ud, Init, Init) => (0, DATAGRAM_RIGHTS),
        (QpKind::Ud, Init, Rtr) | (QpKind::Ud, Sqd, Sqd) => (0, PKEY_INDEX | QKEY),
        (QpKind::Ud, Rtr, Rts) => (SQ_PSN, DATAGRAM_RUNNING),
        (QpKind::Ud, Rts | Sqd | Sqe, Rts) => (0, DATAGRAM_RUNNING),
        _ => return None,
    };
    Some(found)
}

/// Refuse a modify that is not allowed: no such transition, or wrong bits.
///
/// # Errors
/// EINVAL; the sentence names the bits that are missing or superfluous.
pub fn check_modify(
    kind: QpKind,
    state: QpState,
    mask: u32,
    new_state: QpState,
) -> Result<(), Rejected> {
    let step = format!(
        "{} queue pair from {} to {}",
        kind.name(),
        state.name(),
        new_state.name()
    );
    let Some((required, optional)) = transition(kind, state, new_state) else {
        return Err(Rejected::invalid(format!("{step}: no such transition")));
    };
    let missing = required & !mask;
    let superfluous = mask & !(required | optional | STATE);
    let faults: Vec<String> = [("missing", missing), ("superfluous", superfluous)]
        .into_iter()
        .filter(|(_, bits)| *bits != 0)
        .map(|(what, bits)| format!("{what} {}", names(bits)))
        .collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Rejected::invalid(format!("{step}: {}", faults.join("; "))))
    }
}

fn names(mask: u32) -> String {
    let known = NAMES.iter().filter(|(bit, _)| mask & bit != 0);
    let mut found: Vec<String> = known.map(|(_, name)| (*name).to_owned()).collect();
    let unknown = NAMES.iter().fold(mask, |rest, (bit, _)| rest & !bit);
    if unknown != 0 {
        found.push(format!("{unknown:#x}"));
    }
    found.join(", ")
}
