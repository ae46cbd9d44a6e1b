/* What a signal does where the process leaves it at its default action, beneath Python: `signal.getsignal` still says
   SIG_DFL, whoever sets a handler replaces ours as it would replace the default, and a child that runs another program
   inherits nothing.

   A signal that ends the process is delayed: the default action comes when the last report is out, and after a time limit
   in any case. Until then the main thread stands still, so that nothing happens that would not have happened without us.
   It is held inside the handler; where it has the interpreter's lock, which the report needs, it goes on until the thread
   that reports has the lock, and is held then. A second signal ends the process at once. A process that exits already,
   and is late by its last report, gets the signal as much later: its exit code is its own where it would have been.

   One that a handler of the process takes, or that the kernel keeps from the first process of a namespace, is noted, and
   its action is what it was: whoever sent it waits, and then kills.

   The handlers call nothing but what POSIX allows in one, and PyGILState_Check, which compares two words. System calls
   stand for functions that a C library of 2.17 has elsewhere than a newer one. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CODE_SHIFT 56 /* as the state file packs a code and a time */

/* Where the state file has what is written at an end, and the words for it. Mapped once more, so that neither a closed
   file nor the end of the interpreter takes it away. */
static struct {
    volatile uint64_t *words;
    size_t size;
    int state, ending, ended, asked;
    uint64_t finished, failed, by_exit, by_signal;
} file;

/* The process whose signals these are, where their numbers are written, and what is known of an end that has begun. */
static volatile pid_t owner;
static volatile int pipe_end;
static volatile int64_t limit_ns, deadline;
/* Since when the process exits by itself, and how long after that the signal came. */
static volatile int64_t leaving, came_after;
/* The handler of a signal that is noted. It stays the same: another one may call ours, and never be called by it. */
static struct sigaction noted;
static atomic_int begun, held;
static int timer, has_timer, has_exit_handler;
static pid_t timer_owner;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static uint64_t boottime(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void record_ending(uint64_t word) {
    if (file.words[file.ended] == 0) file.words[file.ended] = boottime();
    file.words[file.ending] = word;
}

static void record_signal(int number) {
    volatile uint64_t *words = file.words;
    if (words == NULL || getpid() != owner) return;
    /* Who had finished did not die of it. */
    if (words[file.state] != file.finished) words[file.state] = file.failed;
    if (words[file.ending] == 0) record_ending(file.by_signal | (uint64_t)number);
}

static void record_exit(int status, void *unused) {
    (void)unused;
    volatile uint64_t *words = file.words;
    if (words == NULL || getpid() != owner) return;
    status &= 0xff;
    words[file.state] = status ? file.failed : file.finished;
    /* What an exception left is known better. */
    if (words[file.ending] == 0 || status == 0) record_ending(file.by_exit | (uint64_t)status);
}

static void act_by_default(int number) {
    record_signal(number);
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(number, &action, NULL);
    raise(number); /* inside of a handler it takes effect when that returns */
}

static void on_end(int number, siginfo_t *info, void *context);
static void on_request(int number, siginfo_t *info, void *context);
static void on_kept(int number, siginfo_t *info, void *context);
static void on_noted(int number, siginfo_t *info, void *context);

static int is_installed(int number, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == handler;
}

static void tell(int number) {
    unsigned char byte = (unsigned char)number;
    if (write(pipe_end, &byte, 1) < 0) return; /* it is full: there is enough to wake whoever reads */
}

/* Has the signal come again; what it finds then is the default action, or one that has begun. */
static void send_later(int64_t ns) {
    struct itimerspec when = {.it_value = {ns / 1000000000, ns % 1000000000}};
    if (has_timer) syscall(SYS_timer_settime, timer, 0, &when, NULL);
}

static void hold_until_the_end(int number) {
    atomic_store(&held, 1);
    for (int64_t left; (left = deadline - now()) > 0;) poll(NULL, 0, (int)(left / 1000000 + 1));
    act_by_default(number);
}

static void on_end(int number, siginfo_t *info, void *context) {
    (void)context;
    int error = errno;
    /* A handler that was set later and calls the one before decides itself. */
    if (is_installed(number, on_end)) {
        int asked_to_stop = info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_value.sival_ptr == &held;
        if (getpid() != owner || (!asked_to_stop && atomic_exchange(&begun, 1))) {
            act_by_default(number);
        } else {
            if (!asked_to_stop) {
                deadline = now() + limit_ns;
                send_later(limit_ns);
            }
            if (leaving && has_timer) {
                came_after = now() - leaving;
                errno = error;
                return;
            }
            if (!asked_to_stop) {
                record_signal(number);
                tell(number);
            }
            if (syscall(SYS_gettid) == getpid() && !PyGILState_Check()) hold_until_the_end(number);
        }
    }
    errno = error;
}

static void on_request(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    int error = errno;
    if (is_installed(number, on_request)) {
        if (getpid() == owner) tell(number);
        else act_by_default(number);
    }
    errno = error;
}

static void record_request(int number) {
    if (getpid() == owner && file.words != NULL) file.words[file.asked] = (uint64_t)number << CODE_SHIFT | boottime();
}

static void on_kept(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    int error = errno;
    if (is_installed(number, on_kept)) {
        if (getpid() != owner) act_by_default(number);
        else record_request(number);
    }
    errno = error;
}

static void on_noted(int number, siginfo_t *info, void *context) {
    int error = errno;
    record_request(number);
    errno = error;
    if (noted.sa_flags & SA_SIGINFO) noted.sa_sigaction(number, info, context);
    else noted.sa_handler(number);
}

static PyObject *install(int number, int descriptor, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction before, action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    if (sigaction(number, NULL, &before) != 0) return PyErr_SetFromErrno(PyExc_OSError);
    int by_default = !(before.sa_flags & SA_SIGINFO) && before.sa_handler == SIG_DFL;
    if (by_default) {
        owner = getpid();
        pipe_end = descriptor;
        /* Python changes an action with its lock held, as this is: nothing comes between the two calls. */
        if (sigaction(number, &action, NULL) != 0) return PyErr_SetFromErrno(PyExc_OSError);
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *delay(PyObject *module, PyObject *arguments) {
    (void)module;
    int number, descriptor;
    double seconds;
    if (!PyArg_ParseTuple(arguments, "iid", &number, &descriptor, &seconds)) return NULL;
    if (timer_owner != getpid()) {
        /* A child has neither its parent's timer nor the end that its parent has begun. */
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
        has_timer = syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0;
        timer_owner = getpid();
        atomic_store(&begun, 0);
        atomic_store(&held, 0);
    }
    if (atomic_load(&begun)) Py_RETURN_FALSE;
    limit_ns = (int64_t)(seconds * 1e9);
    return install(number, descriptor, on_end);
}

static PyObject *request(PyObject *module, PyObject *arguments) {
    (void)module;
    int number, descriptor;
    if (!PyArg_ParseTuple(arguments, "ii", &number, &descriptor)) return NULL;
    return install(number, descriptor, on_request);
}

static PyObject *note(PyObject *module, PyObject *argument) {
    (void)module;
    int number = (int)PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (is_installed(number, on_noted) || is_installed(number, on_end) || is_installed(number, on_kept)) Py_RETURN_FALSE;
    struct sigaction before, action;
    if (sigaction(number, NULL, &before) != 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (before.sa_handler == SIG_DFL && getpid() == 1) return install(number, pipe_end, on_kept);
    if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) Py_RETURN_FALSE;
    if (noted.sa_handler != NULL && noted.sa_handler != before.sa_handler) Py_RETURN_FALSE;
    owner = getpid();
    noted = action = before;
    action.sa_sigaction = on_noted;
    action.sa_flags |= SA_SIGINFO;
    if (sigaction(number, &action, NULL) != 0) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_TRUE;
}

static PyObject *leave(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    leaving = now();
    Py_RETURN_NONE;
}

static PyObject *give_back(PyObject *module, PyObject *argument) {
    (void)module;
    int number = (int)PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (is_installed(number, on_noted)) {
        sigaction(number, &noted, NULL);
    } else if (is_installed(number, on_end) || is_installed(number, on_request) || is_installed(number, on_kept)) {
        struct sigaction action = {.sa_handler = SIG_DFL};
        sigaction(number, &action, NULL);
        int64_t left = deadline - now();
        if (leaving && came_after && left > 0) send_later(came_after < left ? came_after : left);
    }
    leaving = 0;
    Py_RETURN_NONE;
}

static PyObject *hold_main_thread(PyObject *module, PyObject *argument) {
    (void)module;
    int number = (int)PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (!atomic_load(&held) && is_installed(number, on_end)) {
        siginfo_t info;
        memset(&info, 0, sizeof info);
        info.si_signo = number;
        info.si_code = SI_QUEUE;
        info.si_pid = getpid();
        info.si_uid = getuid();
        info.si_value.sival_ptr = &held;
        syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), number, &info);
        /* With the interpreter's lock in hand: the main thread cannot have it. */
        for (int turn = 0; turn < 20 && !atomic_load(&held); turn++) poll(NULL, 0, 1);
    }
    return PyBool_FromLong(atomic_load(&held));
}

static PyObject *end(PyObject *module, PyObject *argument) {
    (void)module;
    int number = (int)PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (is_installed(number, on_end)) act_by_default(number);
    else kill(getpid(), number); /* who has taken the signal meanwhile gets it */
    Py_RETURN_NONE;
}

static PyObject *keep_ending(PyObject *module, PyObject *arguments) {
    (void)module;
    int descriptor, state, ending, ended, asked;
    Py_ssize_t size;
    unsigned long long finished, failed, by_exit, by_signal;
    if (!PyArg_ParseTuple(arguments, "iniiiiKKKK", &descriptor, &size, &state, &ending, &ended, &asked, &finished,
                          &failed, &by_exit, &by_signal))
        return NULL;
    void *words = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (words == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    if (file.words != NULL) munmap((void *)file.words, file.size);
    file.words = NULL;
    file.size = (size_t)size, file.state = state, file.ending = ending, file.ended = ended, file.asked = asked;
    file.finished = finished, file.failed = failed, file.by_exit = by_exit, file.by_signal = by_signal;
    file.words = words;
    owner = getpid();
#ifdef __GLIBC__
    if (!has_exit_handler) has_exit_handler = on_exit(record_exit, NULL) == 0;
#endif
    Py_RETURN_NONE;
}

static PyObject *forget_file(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    volatile uint64_t *words = file.words;
    file.words = NULL;
    if (words != NULL) munmap((void *)words, file.size);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"delay", delay, METH_VARARGS, NULL},
    {"request", request, METH_VARARGS, NULL},
    {"note", note, METH_O, NULL},
    {"leave", leave, METH_NOARGS, NULL},
    {"give_back", give_back, METH_O, NULL},
    {"hold_main_thread", hold_main_thread, METH_O, NULL},
    {"end", end, METH_O, NULL},
    {"keep_ending", keep_ending, METH_VARARGS, NULL},
    {"forget_file", forget_file, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "laggard._sigaction", .m_size = 0, .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__sigaction(void) { return PyModuleDef_Init(&definition); }
