#!/bin/sh
# The linker of wheels for this machine's glibc: Zig for its old version, the unwinder of the system.
#
# Zig would link an unwinder of its own into the module, and pthread_exit, which unwinds by that of
# the system, would end the process in it when Python ends with threads in a call (sys/exit.rs).
# URDS_ZIG is the Python that has Zig, URDS_ZIG_TARGET Zig's name of the target. Programs, such as
# build scripts, run here and are linked as ever.
case " $* " in
    *' -shared '*) ;;
    *) exec cc "$@" ;;
esac
for argument in "$@"; do
    shift
    case "$argument" in
        -lgcc_s) set -- "$@" "$(cc -print-file-name=libgcc_s.so.1)" ;;
        -m64 | -lgcc | -lutil | -lrt | -lpthread | -ldl) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
# libgcc_s may ask for a newer glibc than the module: it comes from the system that loads both.
exec "$URDS_ZIG" -m ziglang cc -target "$URDS_ZIG_TARGET" -Wl,--allow-shlib-undefined "$@"
