#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| urds_fuzz::stream_words::run(bytes));
