use super::*;
use crate::sys::raw;

#[test]
fn a_map_is_read_by_who_has_mapped_it() {
    let (file, node) = make(3).expect("memory");
    let client = CongestionMemory::map(file).expect("it is one");
    raw::close(file);
    assert!(!client.is_any() && !client.is_congested(1, 5000));
    let mut map = [0; MAP_BYTES];
    map[5000 / 8] = 1 << (5000 % 8);
    map[MAP_BYTES - 1] = 0x80;
    node.set_map(1, &map);
    node.set_any(true);
    assert!(client.is_any());
    assert!(client.is_congested(1, 5000) && client.is_congested(1, 65535));
    assert!(!client.is_congested(1, 5001) && !client.is_congested(1, 4992));
    assert!(!client.is_congested(0, 5000) && !client.is_congested(2, 5000));
    assert!(!client.is_congested(3, 5000), "no such slot");
    node.set_map(1, &[0; MAP_BYTES]);
    node.set_any(false);
    assert!(!client.is_any() && !client.is_congested(1, 5000));
}

#[test]
fn a_slot_that_stays_odd_keeps_no_reader() {
    let (file, node) = make(1).expect("memory");
    raw::close(file);
    node.set_map(0, &[0xff; MAP_BYTES]);
    let sequence = node.area.word(AT_SEQUENCES);
    sequence.store(sequence.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    assert!(!node.is_congested(0, 1), "its worker was killed");
    node.set_map(0, &[0xff; MAP_BYTES]);
    assert!(node.is_congested(0, 1), "the next one writes it");
}

#[test]
fn what_is_no_congestion_memory_is_refused() {
    let (file, area) = area::make(1 << 16).expect("memory");
    assert_eq!(CongestionMemory::map(file).err(), Some(Errno(libc::EINVAL)));
    area.long(AT_MAGIC).store(MAGIC, Ordering::Relaxed);
    assert_eq!(CongestionMemory::map(file).err(), Some(Errno(libc::EPROTO)));
    area.word(AT_VERSION).store(VERSION, Ordering::Relaxed);
    area.word(AT_SLOTS).store(u32::MAX, Ordering::Relaxed);
    assert_eq!(CongestionMemory::map(file).err(), Some(Errno(libc::EINVAL)));
    raw::close(file);
}
