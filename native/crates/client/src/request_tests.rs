//! Records against the vectors that the node's codec has too.

use urds_channel::socket_memory::{Name, Word};

use super::*;
use crate::socket::{Socket, TRANSPORT_NONE};

const VECTORS: &str = include_str!("../../../../tests/vectors/node_requests.json");

/// Return the bytes of a record by its name, without the zeros behind its length.
fn vector(name: &str) -> Vec<u8> {
    let (_, record) = VECTORS
        .split_once(&format!("\"name\": \"{name}\""))
        .expect("a record of that name");
    let (_, hex) = record.split_once("\"hex\": \"").expect("its bytes");
    let hex = hex.split('"').next().expect("an end");
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex"))
        .collect()
}

/// Where an answer has `SO_COOKIE` of its socket, which no client reads.
const AT_SOCKET: usize = 16;

fn assert_sent(record: &Record, name: &str) {
    let bytes = record.bytes();
    let mut expected = vector(name);
    expected[AT_SOCKET..FIELDS_AT].fill(0); // the node goes by the descriptor
    assert_eq!(bytes[..expected.len()], expected, "{name}");
    assert!(bytes[expected.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn requests_are_as_the_node_reads_them() {
    let new = Record::new;
    assert_sent(&new(Operation::Open).with(&0u32.to_le_bytes()), "open");
    let nonblock = libc::SOCK_NONBLOCK.to_le_bytes();
    assert_sent(&new(Operation::Open).with(&nonblock), "open_nonblock");
    assert_sent(&new(Operation::Find), "find");
    let name = Name::v4([10, 0, 0, 1], 4000).bytes();
    let bind = new(Operation::Bind).with(&name);
    assert_sent(&bind.with(&u32::MAX.to_le_bytes()), "bind_ipv4");
    let mut local = Name {
        port: 0,
        scope: 3,
        ..Name::default()
    };
    local.address[..2].copy_from_slice(&[0xfe, 0x80]);
    local.address[12..].copy_from_slice(&[0, 1, 0, 2]);
    let bind = new(Operation::Bind).with(&local.bytes());
    assert_sent(&bind.with(&2u32.to_le_bytes()), "bind_ipv6_link_local");
    let mut peer = Name {
        port: 18634,
        ..Name::default()
    };
    (peer.address[0], peer.address[15]) = (0xfd, 9);
    let route = new(Operation::Route).with(&peer.bytes()).with(&[7]);
    assert_sent(&route, "route");
    let option = new(Operation::SetOption)
        .with(&1i32.to_le_bytes())
        .with(&7i32.to_le_bytes())
        .with(&4u32.to_le_bytes());
    assert_sent(&option.with(&[0, 0, 4, 0]), "set_option");
    let to = Name::v4([10, 0, 0, 2], 4001).bytes();
    assert_sent(&new(Operation::Cancel).with(&to), "cancel_one");
    assert_sent(&new(Operation::Cancel).with(&[0; 24]), "cancel_all");
    let info = new(Operation::Info).with(&10_000u32.to_le_bytes());
    assert_sent(&info, "info");
    assert_sent(&new(Operation::Status), "status");
    let words = [
        (Word::SendBytes, 1 << 20),
        (Word::ReceiveBytes, 106_496),
        (Word::Monitor, 1),
        (Word::HasMask, 1),
        (Word::MaskLow, u32::MAX),
        (Word::MaskHigh, 3),
    ];
    let name = Name::v4([10, 0, 0, 1], 4000);
    let flags = libc::SOCK_NONBLOCK.cast_unsigned();
    let bound = Socket::asked_bound(flags, &name, TRANSPORT_NONE, &words);
    assert_sent(&bound, "open_and_bind");
}

fn answered(name: &str, operation: Operation) -> Result<Record, i32> {
    let mut bytes = [0; RECORD_BYTES];
    let vector = vector(name);
    bytes[..vector.len()].copy_from_slice(&vector);
    Record::answer(&bytes, operation)
}

#[test]
fn answers_are_read_as_the_node_writes_them() {
    let opened = answered("open_answer", Operation::Open).expect("no error");
    assert_eq!(opened.long(AT_SOCKET), 0x1122_3344_5566_7788);
    assert_eq!((opened.long(24), opened.long(32)), (75_497_472, 33_558_528));
    assert_eq!(answered("open_refused", Operation::Open), Err(24));
    assert_eq!(
        answered("find_refused", Operation::Find),
        Err(libc::ENOTSOCK)
    );
    let bound = answered("bind_answer", Operation::Bind).expect("no error");
    let name = Name::from_bytes(&bound.name(FIELDS_AT));
    assert_eq!(name, Name::v4([10, 0, 0, 1], 4000));
    let route = answered("route_answer", Operation::Route).expect("no error");
    assert_eq!((route.word(24), route.word(28)), (5, 3));
    let cancelled = answered("cancel_answer", Operation::Cancel).expect("no error");
    assert_eq!(cancelled.word(24), 12);
    let info = answered("info_answer", Operation::Info).expect("no error");
    assert_eq!((info.word(24), info.long(28)), (40, 1760));
    let made = answered("open_and_bind_answer", Operation::OpenAndBind).expect("no error");
    assert_eq!((made.long(24), made.long(32)), (75_497_472, 33_558_528));
    let status = answered("status_answer", Operation::Status).expect("no error");
    assert_eq!(status.long(24), 2345);
}

#[test]
fn what_is_no_answer_is_an_error() {
    let wrong = answered("open_answer", Operation::Find);
    assert_eq!(wrong, Err(libc::EPROTO), "of another operation");
    let mut bytes = Record::new(Operation::Find).bytes();
    bytes[AT_STATUS..AT_SOCKET].copy_from_slice(&(-5i32).to_le_bytes());
    let wrong = Record::answer(&bytes, Operation::Find);
    assert_eq!(wrong, Err(libc::EPROTO), "a number that is none");
    bytes[0] ^= 1;
    assert_eq!(Record::answer(&bytes, Operation::Find), Err(libc::EPROTO));
}
