#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| urds_fuzz::congestion_map::run(octets));
