/* Make a guest boot on a processor with more registers than its kernel knows (AMX, say).
 *
 * A User-Mode Linux kernel of version 6.1 keeps 2,696 bytes of a process's extended registers. The machine's kernel takes
 * such registers back in their full size only, which is 11,008 bytes where there is AMX: the guest's first process ends at
 * once. This library, preloaded, adds the bytes that the guest's kernel does not know, as they are at that moment.
 *
 * scripts/lab/guest builds and preloads it where the processor needs it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static char whole[1 << 16]; /* the stacks of the guest's kernel are small */

long ptrace(enum __ptrace_request request, ...)
{
    static long (*next)(enum __ptrace_request, pid_t, void *, void *);
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
    va_end(arguments);

    if (!next)
        next = (long (*)(enum __ptrace_request, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
        return next(request, pid, address, data);

    struct iovec *given = data, full = {whole, sizeof whole};
    if (next(PTRACE_GETREGSET, pid, address, &full) == 0 && given->iov_len < full.iov_len) {
        memcpy(whole, given->iov_base, given->iov_len);
        return next(PTRACE_SETREGSET, pid, address, &full);
    }
    return next(request, pid, address, data);
}
