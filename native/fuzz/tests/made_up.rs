//! Each target without libFuzzer: on made-up bytes, and on what libFuzzer found worth keeping.
//!
//! `seeds/TARGET.hex` has one input a line. To begin a corpus with them:
//! `while read -r line; do printf %s "$line" | xxd -r -p > corpus/TARGET/$((++n)); done < seeds/TARGET.hex`

/// Bytes that look like nothing; splitmix64.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).to_le_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

fn from_hex(line: &str) -> Vec<u8> {
    let digit = |place: usize| u8::from_str_radix(&line[place..place + 2], 16);
    (0..line.len())
        .step_by(2)
        .map(|place| digit(place).expect("hexadecimal digits"))
        .collect()
}

fn try_all(target: fn(&[u8]), seeds: &str) {
    for seed in 0..400 {
        target(&bytes(seed, usize::try_from(seed).expect("few") * 3));
    }
    for line in seeds.lines() {
        target(&from_hex(line));
    }
}

#[test]
fn header() {
    try_all(urds_fuzz::header::run, include_str!("../seeds/header.hex"));
}

#[test]
fn incoming() {
    try_all(
        urds_fuzz::incoming::run,
        include_str!("../seeds/incoming.hex"),
    );
}

#[test]
fn core_pair() {
    try_all(
        urds_fuzz::core_pair::run,
        include_str!("../seeds/core_pair.hex"),
    );
}

#[test]
fn congestion_map() {
    try_all(
        urds_fuzz::congestion_map::run,
        include_str!("../seeds/congestion_map.hex"),
    );
}

#[test]
fn bytes_of_a_stream() {
    try_all(urds_fuzz::bytes::run, include_str!("../seeds/bytes.hex"));
}

#[test]
fn socket_memory() {
    try_all(
        urds_fuzz::socket_memory::run,
        include_str!("../seeds/socket_memory.hex"),
    );
}

#[test]
fn slots() {
    try_all(urds_fuzz::slots::run, include_str!("../seeds/slots.hex"));
}

#[test]
fn verbs_engine() {
    try_all(
        urds_fuzz::verbs_engine::run,
        include_str!("../seeds/verbs_engine.hex"),
    );
}

#[test]
fn stream_words() {
    try_all(
        urds_fuzz::stream_words::run,
        include_str!("../seeds/stream_words.hex"),
    );
}
