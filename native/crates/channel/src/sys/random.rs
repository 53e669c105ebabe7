//! Random bytes of the operating system.

use super::Errno;

/// Fill memory with random bytes, which cannot be foreseen.
///
/// # Errors
/// Of the system: it has none, or forbids the call.
pub fn fill(bytes: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: so many bytes are writable there.
        let found = unsafe { libc::syscall(libc::SYS_getrandom, rest.as_mut_ptr(), rest.len(), 0) };
        match usize::try_from(found) {
            Ok(count) => done += count,
            Err(_) if Errno::last().0 == libc::EINTR => {}
            Err(_) => return Err(Errno::last()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_drawn_and_no_two_draws_are_alike() {
        let mut drawn = [[0; 4096]; 2];
        for bytes in &mut drawn {
            fill(bytes).unwrap();
            // 4,096 draws of one of 256 values miss one of them once in 35,000 runs.
            let missing = (0..=255).filter(|value| !bytes.contains(value)).count();
            assert!(missing < 3, "{missing} values are missing");
        }
        assert_ne!(drawn[0], drawn[1]);
        fill(&mut []).unwrap();
    }
}
