//! A child process that is run instruction by instruction, and killed between two of them.

/// How far a child came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// It did all of its work, in so many instructions.
    Ended(u64),
    /// It was killed before that.
    Killed,
}

/// Fork a child that does `work`, and kill it after so many instructions.
///
/// # Panics
/// If it cannot be traced, or ends otherwise.
pub fn run(instructions: u64, work: impl FnOnce()) -> Run {
    // SAFETY: the child works in memory of its own, and in that which it shares on purpose.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory is passed.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        work();
        // SAFETY: ends the child without what its parent registered.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "a child");
    let mut status = 0;
    // SAFETY: the child is ours, and stopped at each of these calls; `status` is writable.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFSTOPPED(status), "it stopped itself");
        for made in 0..instructions {
            assert_eq!(libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0), 0);
            libc::waitpid(child, &raw mut status, 0);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "it did its work");
                return Run::Ended(made);
            }
            assert!(libc::WIFSTOPPED(status), "a step, not {status:#x}");
        }
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    Run::Killed
}
