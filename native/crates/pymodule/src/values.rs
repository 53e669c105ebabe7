//! Conversion of records and enumerations between Python's tuples and names and the plane's types.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use urds_dataplane::mailbox::MailboxSettings;
use urds_path::{AckMode, DownReason, Extension, Hold, Limits, NO_EXTENSION};

/// `contract.MailboxSettings`, field by field.
pub type SettingsTuple = (
    usize,
    usize,
    Option<u64>,
    Option<u64>,
    bool,
    u64,
    bool,
    Vec<i64>,
    u8,
    u64,
    bool,
);

/// Return settings, and the positions of traces, which only the binding uses.
pub fn settings(tuple: SettingsTuple) -> (MailboxSettings, Vec<i64>) {
    let (
        send_bytes_max,
        receive_bytes_max,
        send_wait_ns,
        receive_wait_ns,
        monitor,
        monitor_mask,
        timestamps,
        traces,
        tos,
        busy_poll_ns,
        single_account,
    ) = tuple;
    let settings = MailboxSettings {
        send_bytes_max,
        receive_bytes_max,
        send_wait_ns,
        receive_wait_ns,
        monitor,
        monitor_mask,
        timestamps,
        traces: !traces.is_empty(),
        tos,
        busy_poll_ns,
        single_account,
    };
    (settings, traces)
}

/// `contract.Limits`, field by field.
pub fn limits(fields: [u64; 14]) -> Limits {
    let bytes = |field: usize| usize::try_from(fields[field]).unwrap_or(usize::MAX);
    Limits {
        message_bytes_max: bytes(0),
        frame_bytes_max: bytes(1),
        path_messages_max: bytes(2),
        control_events_max: bytes(3),
        control_interval_ns: fields[4],
        receive_hard_factor: bytes(5),
        receive_hard_bytes: bytes(6),
        flush_bytes: bytes(7),
        acknowledge_messages: bytes(8),
        acknowledge_bytes: bytes(9),
        acknowledge_delay_ns: fields[10],
        unacked_packets_max: bytes(11),
        unacked_bytes_max: bytes(12),
        linger_ns: fields[13],
    }
}

/// Return the hold of that name. Raises `ValueError`.
pub fn hold(name: &str) -> PyResult<Hold> {
    match name {
        "NOTHING" => Ok(Hold::Nothing),
        "FIRST_FRAME" => Ok(Hold::FirstFrame),
        "HELLO" => Ok(Hold::Hello),
        _ => Err(PyValueError::new_err(format!("no hold {name}"))),
    }
}

/// Return the release of that name. Raises `ValueError`.
pub fn ack_mode(name: &str) -> PyResult<AckMode> {
    match name {
        "NOT_YET" => Ok(AckMode::NotYet),
        "STREAM_ACKNOWLEDGED" => Ok(AckMode::StreamAcknowledged),
        "PEER_ACKNOWLEDGED" => Ok(AckMode::PeerAcknowledged),
        _ => Err(PyValueError::new_err(format!(
            "no acknowledgement mode {name}"
        ))),
    }
}

pub const fn down_reason(reason: DownReason) -> &'static str {
    match reason {
        DownReason::EndOfStream => "END_OF_STREAM",
        DownReason::Error => "ERROR",
        DownReason::TooLong => "TOO_LONG",
        DownReason::BadMap => "BAD_MAP",
        DownReason::BadChecksum => "BAD_CHECKSUM",
        DownReason::BadAcknowledgement => "BAD_ACKNOWLEDGEMENT",
    }
}

/// Return the 16 bytes of an extension; empty means all zero. Raises `ValueError`.
pub fn extension(bytes: &[u8]) -> PyResult<Extension> {
    if bytes.is_empty() {
        return Ok(NO_EXTENSION);
    }
    Extension::try_from(bytes)
        .map_err(|_| PyValueError::new_err(format!("extension of {} bytes", bytes.len())))
}

/// Return an extension for Python: empty if it is all zero.
pub fn extension_bytes(extension: &Extension) -> &[u8] {
    if *extension == NO_EXTENSION {
        &[]
    } else {
        extension
    }
}
