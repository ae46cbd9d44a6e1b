/* The hot path in C: what `_hot_path.py` does on the training thread, without Python's frames, whose code and variables
   are far from the processor when a step has filled its caches.

   The Python twin says why things are as they are; what it promises, its tests hold both to. Numbers that have a name
   there are given by it. Everything here runs with the interpreter's lock held. Nothing raises, but what the program
   raises passes through. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#if PY_VERSION_HEX < 0x030c0000
static PyObject *PyErr_GetRaisedException(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL) return NULL;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) PyException_SetTraceback(value, traceback);
    Py_XDECREF(traceback);
    Py_DECREF(type);
    return value;
}

static void PyErr_SetRaisedException(PyObject *value) {
    PyErr_SetObject((PyObject *)Py_TYPE(value), value);
    Py_DECREF(value);
}
#endif

typedef struct {
    int64_t code, started, ended;
} Event;

/* An open interval. */
typedef struct {
    int64_t started, code;
    int outer;
} Token;

typedef struct {
    PyObject_HEAD
    /* What each call touches stands together. */
    long long thread, progress, offset;
    PyObject *words, *device;
    Event *events;
    Py_ssize_t count, room, capacity;
    int phase, turn;
    char enabled, evaluating, in_forward;
    /* Numbers of the Python twin. */
    int share, phase_bits, code_shift, phase_word, progress_word, forward, evaluation;
    int identity_shift, module_phases, swallows_fetch;
    long long dropped, failures, backwards, self_time_ns;
    /* Until a thread is known to train: the thread of each event, and the one that the phase is of. */
    long long *threads, holder;
    /* Two threads train at once; who claimed last without being it, and how far the one that is had come by then. */
    char contested;
    long long rival, overtaken;
} HotPath;

static inline int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); /* what perf_counter_ns reads */
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static inline long long this_thread(void) { return (long long)PyThread_get_thread_ident(); }

/* What has recorded this thread as the one that trains. */
static _Thread_local const HotPath *trained;

/* Whether this thread is recorded: the one that trains, and any until one is known to. */
static inline int mine(const HotPath *self) {
    return self->thread == 0 ? self->enabled : self->thread == this_thread();
}

/* The same where something begins. One that has trained before goes on where the other stands between its phases: threads
   of a pool, or learners with a lock, train in turns. */
static inline int begins(HotPath *self) {
    if (mine(self)) return 1;
    if (trained != self || self->phase != 0 || self->contested || !self->enabled) return 0;
    self->thread = this_thread();
    self->in_forward = 0;
    return 1;
}

static inline int within(int phases, int phase) { return phases >> phase & 1; }

static int grow(HotPath *self) {
    Py_ssize_t room = self->room ? 2 * self->room : 1024;
    Event *events = PyMem_RawRealloc(self->events, (size_t)room * sizeof(Event));
    if (events == NULL) return 0;
    self->events = events;
    if (self->threads != NULL) {
        long long *threads = PyMem_RawRealloc(self->threads, (size_t)room * sizeof(*threads));
        if (threads == NULL) return 0;
        self->threads = threads;
    }
    self->room = room;
    return 1;
}

static inline void append(HotPath *self, int64_t code, int64_t started, int64_t ended) {
    if (self->count >= self->capacity || (self->count == self->room && !grow(self))) {
        self->dropped++;
        return;
    }
    if (self->thread == 0) {
        if (self->threads == NULL) self->threads = PyMem_RawCalloc((size_t)self->room, sizeof(*self->threads));
        if (self->threads != NULL) self->threads[self->count] = this_thread();
    }
    self->events[self->count++] = (Event){code, started, ended};
}

/* --- the state file and the device's clock -------------------------------------------------------------------------- */

static void detach(HotPath *self) {
    self->failures++;
    Py_CLEAR(self->words);
}

/* The state file's live words; NULL without, also where their memory has gone away. */
static inline volatile uint64_t *live(HotPath *self) {
    PyObject *words = self->words;
    if (words == NULL) return NULL;
    if (((PyMemoryViewObject *)words)->flags & _Py_MEMORYVIEW_RELEASED) {
        detach(self);
        return NULL;
    }
    return PyMemoryView_GET_BUFFER(words)->buf;
}

static inline uint64_t shown(const HotPath *self, int64_t at) {
    int phase = self->phase == 0 && self->evaluating ? self->evaluation : self->phase;
    return ((uint64_t)phase << self->code_shift) + (uint64_t)(at + self->offset);
}

/* Tell the device's clock of an edge. Returns -1 with an exception only where that is none that a hook may hold back. */
static int tell_device(HotPath *self, int64_t at) {
    PyObject *pending = PyErr_GetRaisedException();
    PyObject *device = Py_NewRef(self->device);
    PyObject *number = PyLong_FromLongLong(at);
    PyObject *result = number == NULL ? NULL : PyObject_CallOneArg(device, number);
    int status = 0;
    if (result == NULL) {
        if (PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Clear();
            Py_CLEAR(self->device);
            self->failures++;
        } else {
            status = -1;
        }
    }
    Py_XDECREF(result);
    Py_XDECREF(number);
    Py_DECREF(device);
    if (pending != NULL) {
        if (status == 0)
            PyErr_SetRaisedException(pending);
        else
            Py_DECREF(pending);
    }
    return status;
}

static inline int edge(HotPath *self, int64_t at) { return self->device == NULL ? 0 : tell_device(self, at); }

/* --- intervals ------------------------------------------------------------------------------------------------------ */

static inline void timed(HotPath *self, int64_t since) {
    if (--self->turn < 1) {
        self->self_time_ns += (now() - since) * self->share;
        self->turn = self->share;
    }
}

/* Begin an interval: 1, or 0 on a thread that does not train, or -1 with an exception. */
static inline int enter(HotPath *self, int64_t code, Token *token) {
    int64_t started = now();
    if (!begins(self)) return 0;
    if (self->thread == 0) self->holder = this_thread();
    *token = (Token){started, code, self->phase};
    self->phase = (int)(code & self->phase_bits);
    self->progress++;
    volatile uint64_t *words = live(self);
    if (words != NULL) {
        words[self->phase_word] = shown(self, started);
        words[self->progress_word] = (uint64_t)self->progress;
    }
    int status = edge(self, started);
    timed(self, started);
    return status < 0 ? -1 : 1;
}

/* End an interval. Returns when that was, 0 on a thread that turned out not to train, or -1 with an exception. */
static inline int64_t leave(HotPath *self, const Token *token) {
    int64_t ended = now();
    if (!mine(self) && self->enabled) return 0;
    int status = edge(self, ended); /* before the event is there to be taken */
    append(self, token->code, token->started, ended);
    self->phase = token->outer;
    volatile uint64_t *words = live(self);
    if (words != NULL) words[self->phase_word] = shown(self, ended);
    timed(self, ended);
    return status < 0 ? -1 : ended;
}

/* This thread trains: what others did so far is forgotten. Returns whether none was known to train. */
static int claim(HotPath *self) {
    long long me = this_thread(), before = self->thread;
    if (before == me || !self->enabled) return 0;
    if (before != 0 && (self->contested || self->phase != 0)) {
        /* Both train at once, unless that one does nothing from one claim to the next. */
        int stands = self->rival == me && self->overtaken == self->progress;
        self->contested = 1;
        self->rival = me;
        self->overtaken = self->progress;
        if (!stands) return 0;
    }
    self->thread = me;
    trained = self;
    if ((before ? before : self->holder) != me) self->phase = self->in_forward = 0;
    if (before != 0) return 0;
    Py_ssize_t kept = 0;
    for (Py_ssize_t index = 0; self->threads != NULL && index < self->count; index++)
        if (self->threads[index] == me) self->events[kept++] = self->events[index];
    if (self->threads != NULL) self->count = kept;
    PyMem_RawFree(self->threads);
    self->threads = NULL;
    return 1;
}

static inline int trains(HotPath *self) {
    self->backwards++;
    self->evaluating = 0;
    if (self->thread == this_thread()) return 0;
    int first = claim(self);
    /* It takes over from another thread. Its own forward was before that, and begins the step. */
    if (!first && self->thread == this_thread()) {
        int64_t at = now();
        append(self, self->forward, at, at);
    }
    return first;
}

static PyObject *token_as_tuple(const Token *token) {
    return Py_BuildValue("(LiL)", (long long)token->code, token->outer, (long long)token->started);
}

static int token_from_tuple(PyObject *tuple, Token *token) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3) {
        PyErr_SetString(PyExc_TypeError, "a token is what begin() returned");
        return 0;
    }
    token->code = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 0));
    token->outer = (int)PyLong_AsLong(PyTuple_GET_ITEM(tuple, 1));
    token->started = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 2));
    return !PyErr_Occurred();
}

/* --- methods for Python --------------------------------------------------------------------------------------------- */

static PyObject *begin_code(HotPath *self, int64_t code, int *recorded) {
    Token token;
    *recorded = enter(self, code, &token);
    if (*recorded < 0) return NULL;
    if (*recorded == 0) Py_RETURN_NONE;
    return token_as_tuple(&token);
}

static PyObject *HotPath_begin(HotPath *self, PyObject *argument) {
    int recorded;
    long long code = PyLong_AsLongLong(argument);
    if (code == -1 && PyErr_Occurred()) return NULL;
    if (code == self->forward) self->evaluating = 0; /* with gradients, so an evaluation is over */
    return begin_code(self, code, &recorded);
}

static PyObject *HotPath_evaluate(HotPath *self, PyObject *Py_UNUSED(ignored)) {
    int recorded;
    PyObject *token = begin_code(self, (self->phase_bits + 1) | self->evaluation, &recorded);
    if (recorded == 1) self->evaluating = 1;
    return token;
}

static PyObject *HotPath_end(HotPath *self, PyObject *argument) {
    Token token;
    if (argument == Py_None) return PyLong_FromLong(0);
    if (!token_from_tuple(argument, &token)) return NULL;
    int64_t ended = leave(self, &token);
    return ended < 0 ? NULL : PyLong_FromLongLong(ended);
}

static PyObject *HotPath_add(HotPath *self, PyObject *arguments) {
    long long code, started, ended;
    if (!PyArg_ParseTuple(arguments, "LLL:add", &code, &started, &ended)) return NULL;
    append(self, code, started, ended);
    Py_RETURN_NONE;
}

static PyObject *HotPath_edge(HotPath *self, PyObject *argument) {
    long long at = PyLong_AsLongLong(argument);
    if ((at == -1 && PyErr_Occurred()) || edge(self, at) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *HotPath_claim(HotPath *self, PyObject *Py_UNUSED(ignored)) { return PyBool_FromLong(claim(self)); }

static PyObject *HotPath_trains(HotPath *self, PyObject *Py_UNUSED(ignored)) { return PyBool_FromLong(trains(self)); }

static PyObject *HotPath_resume(HotPath *self, PyObject *argument) {
    long long at = PyLong_AsLongLong(argument);
    if (at == -1 && PyErr_Occurred()) return NULL;
    if (self->evaluating) {
        self->evaluating = 0;
        volatile uint64_t *words = live(self);
        if (words != NULL) words[self->phase_word] = shown(self, at);
    }
    Py_RETURN_NONE;
}

static PyObject *HotPath_synchronize(HotPath *self, PyObject *argument) {
    long long offset = PyLong_AsLongLong(argument);
    if (offset == -1 && PyErr_Occurred()) return NULL;
    self->offset = offset;
    Py_RETURN_NONE;
}

static PyObject *HotPath_drain(HotPath *self, PyObject *Py_UNUSED(ignored)) {
    /* A copy, since to make a tuple may run a finalizer, and that the training thread. */
    Py_ssize_t count = self->count;
    Event *events = PyMem_RawMalloc((size_t)(count ? count : 1) * sizeof(Event));
    if (events == NULL) return PyErr_NoMemory();
    if (count) memcpy(events, self->events, (size_t)count * sizeof(Event));
    self->count = 0;
    PyObject *taken = PyList_New(count);
    for (Py_ssize_t index = 0; taken != NULL && index < count; index++) {
        const Event *event = &events[index];
        PyObject *tuple = Py_BuildValue("(LLL)", (long long)event->code, (long long)event->started, (long long)event->ended);
        if (tuple == NULL)
            Py_CLEAR(taken);
        else
            PyList_SET_ITEM(taken, index, tuple);
    }
    PyMem_RawFree(events);
    return taken;
}

/* Whose an interval is, by the place of an object that is there as long as it matters: see `_recorder.identity_of`. */
static int64_t identity(const HotPath *self, const PyObject *object) {
    return (int64_t)(((uintptr_t)object >> 4 & 0xffffff) << self->identity_shift);
}

/* A step of an optimizer begins on the thread that trains, within no other: True, or False where Python must see to it.
   `running` is the hook's list of (id of the optimizer, token, 0). */
static PyObject *HotPath_step_begins(HotPath *self, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 3 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "step_begins(running, optimizer, code)");
        return NULL;
    }
    PyObject *running = arguments[0];
    Token token;
    if (PyList_GET_SIZE(running) != 0 || self->thread == 0) Py_RETURN_FALSE;
    int64_t code = PyLong_AsLong(arguments[2]) | identity(self, arguments[1]);
    int recorded = enter(self, code, &token);
    if (recorded < 0) return NULL;
    if (recorded == 0) Py_RETURN_FALSE;
    PyObject *entry = Py_BuildValue("(NNi)", PyLong_FromVoidPtr(arguments[1]), token_as_tuple(&token), 0);
    int status = entry == NULL ? -1 : PyList_Append(running, entry);
    Py_XDECREF(entry);
    if (status < 0) return NULL;
    Py_RETURN_TRUE;
}

/* Its end. */
static PyObject *HotPath_step_ends(HotPath *self, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "step_ends(running, optimizer)");
        return NULL;
    }
    PyObject *running = arguments[0];
    Token token;
    if (PyList_GET_SIZE(running) != 1) Py_RETURN_FALSE;
    PyObject *entry = PyList_GET_ITEM(running, 0);
    if (PyLong_AsVoidPtr(PyTuple_GET_ITEM(entry, 0)) != arguments[1]) Py_RETURN_FALSE;
    if (!PyTuple_Check(PyTuple_GET_ITEM(entry, 1))) Py_RETURN_FALSE;
    if (!token_from_tuple(PyTuple_GET_ITEM(entry, 1), &token)) return NULL;
    if (PyList_SetSlice(running, 0, 1, NULL) < 0 || leave(self, &token) < 0) return NULL;
    Py_RETURN_TRUE;
}

/* --- wrappers ------------------------------------------------------------------------------------------------------- */

/* What each kind of wrapper has to ask: see the functions that make them. */
#define MOST_ASKED 8
typedef union {
    struct {
        PyObject *adopt;
    } fetch;
    struct {
        PyObject *compiler, *traced, *graph, *is_grad_enabled, *found, *base, *evaluates, *trained;
    } forward;
    struct {
        PyObject *evidence, *observers;
    } backward;
    struct {
        PyObject *before, *after;
    } around;
    PyObject *each[MOST_ASKED];
} Asked;

/* The codes that each kind records beside its own. */
typedef union {
    struct {
        int first, exhausted;
    } fetch;
    struct {
        int evaluation, no_grad;
    } forward;
    struct {
        int gradient;
    } backward;
} Codes;

/* A callable that stands in for a function or a method, and times it. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    HotPath *hot;
    PyObject *call;
    int64_t code;
    char running;
    Asked asked;
    Codes codes;
    PyObject *dictionary, *weak_references;
} Timed;

static PyObject *name_num_yielded, *name_loader, *name_call, *name_training, *name_running, *name_is_compiling, *name_accumulate_grad;

static int is_zero(PyObject *number) { return PyLong_Check(number) && PyObject_Not(number) == 1; }

/* Whether an attribute is true; 0 also where there is none. */
static int asks(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) {
        PyErr_Clear();
        return 0;
    }
    int answer = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
    Py_DECREF(value);
    if (answer < 0) {
        PyErr_Clear();
        return 0;
    }
    return answer;
}

/* The code of a fetch by this iterator, which says whose it is. -1 with an exception that is no failure of ours. */
static int64_t fetch_code(Timed *self, PyObject *iterator) {
    PyObject *number = PyObject_GetAttr(iterator, name_loader);
    if (number == NULL) {
        PyErr_Clear();
        number = PyObject_CallOneArg(self->asked.fetch.adopt, iterator); /* a new one */
        if (number == NULL) return -1;
    }
    long long loader = PyLong_Check(number) ? PyLong_AsLongLong(number) : 0;
    Py_DECREF(number);
    return self->code | (int64_t)loader << self->hot->identity_shift;
}

/* `__next__` of a DataLoader's iterator. */
static PyObject *call_fetch(PyObject *callable, PyObject *const *arguments, size_t flags, PyObject *names) {
    Timed *self = (Timed *)callable;
    HotPath *hot = self->hot;
    int mark = 0;
    Token token;
    if (PyVectorcall_NARGS(flags) < 1 || !begins(hot) || within(hot->swallows_fetch, hot->phase))
        return PyObject_Vectorcall(self->call, arguments, flags, names);
    PyObject *yielded = PyObject_GetAttr(arguments[0], name_num_yielded);
    if (yielded == NULL)
        PyErr_Clear();
    else {
        if (is_zero(yielded)) mark = self->codes.fetch.first;
        Py_DECREF(yielded);
    }
    int64_t code = fetch_code(self, arguments[0]);
    if (code < 0) return NULL;
    int recorded = enter(hot, code, &token);
    if (recorded < 0) return NULL;
    Py_INCREF(callable); /* the patch may be undone while it runs */
    PyObject *batch = PyObject_Vectorcall(self->call, arguments, flags, names);
    if (recorded) {
        if (batch == NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) mark = self->codes.fetch.exhausted;
        int64_t ended = leave(hot, &token);
        if (ended < 0)
            Py_CLEAR(batch);
        else if (mark && ended)
            append(hot, mark, ended, ended);
    }
    Py_DECREF(callable);
    return batch;
}

/* Report to a function that a call has ended. An exception of that call goes on; one of the function takes the result's place. */
static void report_to(PyObject *function, PyObject *const *arguments, size_t count, PyObject **result) {
    PyObject *pending = PyErr_GetRaisedException();
    PyObject *answer = PyObject_Vectorcall(function, arguments, count, NULL);
    if (answer == NULL) {
        Py_CLEAR(*result);
        Py_XDECREF(pending);
    } else if (pending != NULL) {
        PyErr_SetRaisedException(pending);
    }
    Py_XDECREF(answer);
}

/* Call a method with a tuple and a dictionary, as the interpreter does, but without a tuple that has the object too. */
static PyObject *call_method(PyObject *call, PyObject *object, PyObject *arguments, PyObject *named) {
    PyObject *few[8], **stack = few;
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    /* The first place is the callee's, to put an object of its own there. */
    if (count + 2 > (Py_ssize_t)(sizeof(few) / sizeof(*few)))
        stack = PyMem_Malloc((size_t)(count + 2) * sizeof(*stack));
    if (stack == NULL) return PyErr_NoMemory();
    stack[1] = object;
    for (Py_ssize_t index = 0; index < count; index++) stack[index + 2] = PyTuple_GET_ITEM(arguments, index);
    size_t flags = (size_t)(count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET;
    PyObject *result = PyObject_VectorcallDict(call, stack + 1, flags, named);
    if (stack != few) PyMem_Free(stack);
    return result;
}

/* `__call__` of an outermost module: called with the module, a tuple and a dictionary. Without a function of its own to
   call, it calls what its base has at that moment: torch.fx puts another one there while it traces, and is left alone
   then. */
static PyObject *call_forward(PyObject *callable, PyObject *const *arguments, size_t flags, PyObject *Py_UNUSED(names)) {
    Timed *self = (Timed *)callable;
    HotPath *hot = self->hot;
    Token token;
    PyObject *found = self->asked.forward.found, *base = self->asked.forward.base, *call;
    if (PyVectorcall_NARGS(flags) != 3 || !PyTuple_Check(arguments[1]) || !PyDict_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "forward(module, arguments, named)");
        return NULL;
    }
    PyObject *module = arguments[0], *given = arguments[1], *named = arguments[2];
    if (base == Py_None)
        call = Py_NewRef(self->call);
    else if ((call = PyObject_GetAttr(base, name_call)) == NULL)
        return NULL;
    PyObject *result = NULL;
    if (call != self->call || hot->in_forward || !begins(hot) || !within(hot->module_phases, hot->phase) ||
        asks(self->asked.forward.compiler, name_is_compiling) ||
        (asks(self->asked.forward.traced, name_running) &&
         PyObject_TypeCheck(module, (PyTypeObject *)self->asked.forward.graph))) {
        result = call_method(call, module, given, named);
        Py_DECREF(call);
        return result;
    }
    int64_t code = self->codes.forward.evaluation;
    PyObject *enabled = PyObject_CallNoArgs(self->asked.forward.is_grad_enabled), *evaluates = NULL;
    if (asks(module, name_training)) {
        if (enabled == Py_True)
            code = self->code;
        else if ((evaluates = PyObject_CallOneArg(self->asked.forward.evaluates, module)) != Py_True)
            code = self->codes.forward.no_grad;
    } else if (enabled == Py_True && PySet_Contains(self->asked.forward.trained, (PyObject *)Py_TYPE(module)) == 0) {
        code = self->code;
    }
    Py_XDECREF(enabled);
    Py_XDECREF(evaluates);
    PyErr_Clear();
    if (code == self->code) hot->evaluating = 0;
    int recorded = enter(hot, code, &token);
    if (recorded > 0) {
        if (code == self->codes.forward.evaluation) hot->evaluating = 1;
        hot->in_forward = 1;
        Py_INCREF(callable);
        result = call_method(call, module, given, named);
        hot->in_forward = 0;
        if (leave(hot, &token) < 0) Py_CLEAR(result);
        if (found != Py_None) report_to(found, &module, 1, &result);
        Py_DECREF(callable);
    } else if (recorded == 0) {
        result = call_method(call, module, given, named);
    }
    Py_DECREF(call);
    return result;
}

/* What calls functions of a hook before and after. It has no frame, so a traceback shows what it shows without us. */
static PyObject *call_around(PyObject *callable, PyObject *const *arguments, size_t flags, PyObject *names) {
    Timed *self = (Timed *)callable;
    Py_INCREF(callable); /* the patch may be undone while it runs */
    PyObject *state = PyObject_Vectorcall(self->asked.around.before, arguments, flags, names);
    PyObject *result = state == NULL ? NULL : PyObject_Vectorcall(self->call, arguments, flags, names);
    if (state != NULL && state != Py_None) {
        PyObject *ended[] = {state, result == NULL ? Py_False : Py_True, result == NULL ? Py_None : result};
        report_to(self->asked.around.after, ended, 3, &result);
    }
    Py_XDECREF(state);
    Py_DECREF(callable);
    return result;
}

/* The function through which every call of the autograd engine goes. Torch calls it with a tuple and a dictionary, and it
   takes no others, so these are handed on as they are. */
static PyObject *call_backward(Timed *self, PyObject *arguments, PyObject *named) {
    HotPath *hot = self->hot;
    Token token;
    PyObject *observers = self->asked.backward.observers;
    if (self->running) return PyObject_Call(self->call, arguments, named);
    /* `autograd.grad` may be part of a model, also where nothing is trained. */
    PyObject *accumulate = named == NULL ? NULL : PyDict_GetItemWithError(named, name_accumulate_grad);
    int accumulates = accumulate != NULL && PyObject_IsTrue(accumulate) == 1;
    if (accumulates && trains(hot)) {
        PyObject *told = PyObject_CallNoArgs(self->asked.backward.evidence);
        if (told == NULL) return NULL;
        Py_DECREF(told);
    }
    int recorded = enter(hot, accumulates ? self->code : self->codes.backward.gradient, &token);
    if (recorded < 0) return NULL;
    if (!recorded) return PyObject_Call(self->call, arguments, named);
    self->running = 1;
    Py_INCREF(self);
    PyObject *result = PyObject_Call(self->call, arguments, named);
    self->running = 0;
    int64_t ended = leave(hot, &token);
    if (ended < 0) Py_CLEAR(result);
    if (ended > 0 && accumulates && PyList_GET_SIZE(observers) > 0) {
        PyObject *pending = PyErr_GetRaisedException();
        PyObject *began_at = PyLong_FromLongLong(token.started), *ended_at = PyLong_FromLongLong(ended);
        for (Py_ssize_t index = 0; !PyErr_Occurred() && index < PyList_GET_SIZE(observers); index++) {
            PyObject *observer = Py_NewRef(PyList_GET_ITEM(observers, index));
            Py_XDECREF(PyObject_CallFunctionObjArgs(observer, began_at, ended_at, NULL));
            Py_DECREF(observer);
        }
        Py_XDECREF(began_at);
        Py_XDECREF(ended_at);
        if (PyErr_Occurred()) {
            Py_CLEAR(result);
            Py_XDECREF(pending);
        } else if (pending != NULL) {
            PyErr_SetRaisedException(pending);
        }
    }
    Py_DECREF(self);
    return result;
}

static PyObject *Timed_call(PyObject *self, PyObject *arguments, PyObject *named) {
    if (((Timed *)self)->vectorcall != NULL) return PyVectorcall_Call(self, arguments, named);
    return call_backward((Timed *)self, arguments, named);
}

static int Timed_traverse(Timed *self, visitproc visit, void *arg) {
    Py_VISIT(self->hot);
    Py_VISIT(self->call);
    for (int index = 0; index < MOST_ASKED; index++) Py_VISIT(self->asked.each[index]);
    Py_VISIT(self->dictionary);
    return 0;
}

static int Timed_clear(Timed *self) {
    Py_CLEAR(self->hot);
    Py_CLEAR(self->call);
    for (int index = 0; index < MOST_ASKED; index++) Py_CLEAR(self->asked.each[index]);
    Py_CLEAR(self->dictionary);
    return 0;
}

static void Timed_dealloc(Timed *self) {
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    Timed_clear(self);
    PyObject_GC_Del(self);
}

static PyObject *Timed_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* Pickled by value, as a class of a notebook is, it is what it wraps: the other process has its own instrumentation. A
   function of a module is pickled by its name, under which the other process has its own too. */
static PyObject *Timed_reduce(Timed *self, PyObject *Py_UNUSED(ignored)) {
    if (self->vectorcall == call_around) return PyObject_GetAttrString((PyObject *)self, "__qualname__");
    PyObject *operators = PyImport_ImportModule("operator");
    PyObject *item = operators == NULL ? NULL : PyObject_GetAttrString(operators, "getitem");
    Py_XDECREF(operators);
    return item == NULL ? NULL : Py_BuildValue("(N((O)i))", item, self->call, 0);
}

static PyMethodDef Timed_methods[] = {
    {"__reduce__", (PyCFunction)Timed_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *Timed_repr(Timed *self) { return PyUnicode_FromFormat("<timed %R>", self->call); }

static PyGetSetDef Timed_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject TimedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "laggard._native.Timed",
    .tp_basicsize = sizeof(Timed),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Timed, vectorcall),
    .tp_call = Timed_call,
    .tp_dictoffset = offsetof(Timed, dictionary),
    .tp_weaklistoffset = offsetof(Timed, weak_references),
    .tp_traverse = (traverseproc)Timed_traverse,
    .tp_clear = (inquiry)Timed_clear,
    .tp_dealloc = (destructor)Timed_dealloc,
    .tp_descr_get = Timed_get,
    .tp_repr = (reprfunc)Timed_repr,
    .tp_methods = Timed_methods,
    .tp_getset = Timed_attributes,
};

static Timed *make_timed(HotPath *hot, vectorcallfunc function, PyObject *call, int code) {
    Timed *self = PyObject_GC_New(Timed, &TimedType);
    if (self == NULL) return NULL;
    memset((char *)self + offsetof(Timed, vectorcall), 0, sizeof(Timed) - offsetof(Timed, vectorcall));
    self->vectorcall = function;
    self->hot = (HotPath *)Py_NewRef(hot);
    self->call = Py_NewRef(call);
    self->code = code;
    PyObject_GC_Track(self);
    return self;
}

/* timed_fetch(call, code, mark of a first batch, mark of an end, what gives a new iterator the number of its loader) */
static PyObject *HotPath_timed_fetch(HotPath *self, PyObject *arguments) {
    PyObject *call, *adopt;
    int code, first, exhausted;
    if (!PyArg_ParseTuple(arguments, "OiiiO:timed_fetch", &call, &code, &first, &exhausted, &adopt)) return NULL;
    Timed *made = make_timed(self, call_fetch, call, code);
    if (made == NULL) return NULL;
    made->codes.fetch.first = first;
    made->codes.fetch.exhausted = exhausted;
    made->asked.fetch.adopt = Py_NewRef(adopt);
    return (PyObject *)made;
}

/* around(call, what is called before with the same arguments, what is called after) */
static PyObject *HotPath_around(HotPath *self, PyObject *arguments) {
    PyObject *call, *before, *after;
    if (!PyArg_ParseTuple(arguments, "OOO:around", &call, &before, &after)) return NULL;
    Timed *made = make_timed(self, call_around, call, 0);
    if (made == NULL) return NULL;
    made->asked.around.before = Py_NewRef(before);
    made->asked.around.after = Py_NewRef(after);
    return (PyObject *)made;
}

/* timed_forward(call, code, code in eval mode, code without gradients, torch.compiler, what is traced, graphs' class,
   is_grad_enabled, what is told of each outermost module or None, the class whose `__call__` it calls or None, what says
   whether a module without gradients evaluates, the classes of which a module in eval mode evaluates with gradients too) */
static PyObject *HotPath_timed_forward(HotPath *self, PyObject *arguments) {
    PyObject *call, *compiler, *traced, *graph, *is_grad_enabled, *found, *base, *evaluates, *trained;
    int code, evaluation, no_grad;
    if (!PyArg_ParseTuple(arguments, "OiiiOOO!OOOOO!:timed_forward", &call, &code, &evaluation, &no_grad, &compiler, &traced,
                          &PyType_Type, &graph, &is_grad_enabled, &found, &base, &evaluates, &PySet_Type, &trained))
        return NULL;
    Timed *made = make_timed(self, call_forward, call, code);
    if (made == NULL) return NULL;
    made->codes.forward.evaluation = evaluation;
    made->codes.forward.no_grad = no_grad;
    made->asked.forward.compiler = Py_NewRef(compiler);
    made->asked.forward.traced = Py_NewRef(traced);
    made->asked.forward.graph = Py_NewRef(graph);
    made->asked.forward.is_grad_enabled = Py_NewRef(is_grad_enabled);
    made->asked.forward.found = Py_NewRef(found);
    made->asked.forward.base = Py_NewRef(base);
    made->asked.forward.evaluates = Py_NewRef(evaluates);
    made->asked.forward.trained = Py_NewRef(trained);
    return (PyObject *)made;
}

/* timed_backward(call, code, code without accumulation, what is told that this process trains, list of observers) */
static PyObject *HotPath_timed_backward(HotPath *self, PyObject *arguments) {
    PyObject *call, *evidence, *observers;
    int code, gradient;
    if (!PyArg_ParseTuple(arguments, "OiiOO!:timed_backward", &call, &code, &gradient, &evidence, &PyList_Type, &observers))
        return NULL;
    Timed *made = make_timed(self, NULL, call, code);
    if (made == NULL) return NULL;
    made->codes.backward.gradient = gradient;
    made->asked.backward.evidence = Py_NewRef(evidence);
    made->asked.backward.observers = Py_NewRef(observers);
    return (PyObject *)made;
}

/* --- the type ------------------------------------------------------------------------------------------------------- */

static int HotPath_init(HotPath *self, PyObject *arguments, PyObject *named) {
    static char *names[] = {"share", "phase_bits", "code_shift", "phase_word", "progress_word", "forward", "evaluation",
                            "identity_shift", "module_phases", "swallows_fetch", "capacity", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "iiiiiiiiiin:HotPath", names, &self->share, &self->phase_bits,
                                     &self->code_shift, &self->phase_word, &self->progress_word, &self->forward,
                                     &self->evaluation, &self->identity_shift, &self->module_phases, &self->swallows_fetch,
                                     &self->capacity))
        return -1;
    self->turn = self->share;
    self->enabled = 1;
    return 0;
}

static int HotPath_traverse(HotPath *self, visitproc visit, void *arg) {
    Py_VISIT(self->words);
    Py_VISIT(self->device);
    return 0;
}

static int HotPath_clear(HotPath *self) {
    Py_CLEAR(self->words);
    Py_CLEAR(self->device);
    return 0;
}

static void HotPath_dealloc(HotPath *self) {
    PyObject_GC_UnTrack(self);
    HotPath_clear(self);
    PyMem_RawFree(self->events);
    PyMem_RawFree(self->threads);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *get_words(HotPath *self, void *Py_UNUSED(closure)) {
    return Py_NewRef(self->words == NULL ? Py_None : self->words);
}

static int set_words(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    if (value != NULL && value != Py_None) {
        int last = self->phase_word > self->progress_word ? self->phase_word : self->progress_word;
        if (!PyMemoryView_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "words must be a memoryview or None");
            return -1;
        }
        /* What was released is found at the next use, as it is when that happens later. */
        if (!(((PyMemoryViewObject *)value)->flags & _Py_MEMORYVIEW_RELEASED)) {
            const Py_buffer *view = PyMemoryView_GET_BUFFER(value);
            if (view->readonly || view->itemsize != 8 || view->len < 8 * (last + 1) || !PyBuffer_IsContiguous(view, 'C')) {
                PyErr_SetString(PyExc_ValueError, "words must be writable, of 8 bytes each, and enough");
                return -1;
            }
        }
    }
    PyObject *before = self->words;
    self->words = value == NULL || value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

static PyObject *get_device(HotPath *self, void *Py_UNUSED(closure)) {
    return Py_NewRef(self->device == NULL ? Py_None : self->device);
}

static int set_device(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    PyObject *before = self->device;
    self->device = value == NULL || value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

static PyObject *get_enabled(HotPath *self, void *Py_UNUSED(closure)) { return PyBool_FromLong(self->enabled); }

static int set_enabled(HotPath *self, PyObject *value, void *Py_UNUSED(closure)) {
    int enabled = value == NULL ? 0 : PyObject_IsTrue(value);
    if (enabled < 0) return -1;
    self->enabled = (char)enabled;
    return 0;
}

static PyGetSetDef HotPath_attributes[] = {
    {"words", (getter)get_words, (setter)set_words, NULL, NULL},
    {"device", (getter)get_device, (setter)set_device, NULL, NULL},
    {"enabled", (getter)get_enabled, (setter)set_enabled, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef HotPath_members[] = {
    {"thread", T_LONGLONG, offsetof(HotPath, thread), 0, NULL},
    {"progress", T_LONGLONG, offsetof(HotPath, progress), 0, NULL},
    {"offset", T_LONGLONG, offsetof(HotPath, offset), READONLY, NULL},
    {"waiting", T_PYSSIZET, offsetof(HotPath, count), READONLY, NULL},
    {"capacity", T_PYSSIZET, offsetof(HotPath, capacity), 0, NULL},
    {"phase", T_INT, offsetof(HotPath, phase), 0, NULL},
    {"dropped", T_LONGLONG, offsetof(HotPath, dropped), 0, NULL},
    {"failures", T_LONGLONG, offsetof(HotPath, failures), 0, NULL},
    {"backwards", T_LONGLONG, offsetof(HotPath, backwards), 0, NULL},
    {"self_time_ns", T_LONGLONG, offsetof(HotPath, self_time_ns), 0, NULL},
    {"contested", T_BOOL, offsetof(HotPath, contested), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef HotPath_methods[] = {
    {"begin", (PyCFunction)HotPath_begin, METH_O, NULL},
    {"end", (PyCFunction)HotPath_end, METH_O, NULL},
    {"evaluate", (PyCFunction)HotPath_evaluate, METH_NOARGS, NULL},
    {"add", (PyCFunction)HotPath_add, METH_VARARGS, NULL},
    {"edge", (PyCFunction)HotPath_edge, METH_O, NULL},
    {"trains", (PyCFunction)HotPath_trains, METH_NOARGS, NULL},
    {"claim", (PyCFunction)HotPath_claim, METH_NOARGS, NULL},
    {"resume", (PyCFunction)HotPath_resume, METH_O, NULL},
    {"synchronize", (PyCFunction)HotPath_synchronize, METH_O, NULL},
    {"drain", (PyCFunction)HotPath_drain, METH_NOARGS, NULL},
    {"step_begins", FAST(HotPath_step_begins), NULL},
    {"step_ends", FAST(HotPath_step_ends), NULL},
    {"timed_fetch", (PyCFunction)HotPath_timed_fetch, METH_VARARGS, NULL},
    {"around", (PyCFunction)HotPath_around, METH_VARARGS, NULL},
    {"timed_forward", (PyCFunction)HotPath_timed_forward, METH_VARARGS, NULL},
    {"timed_backward", (PyCFunction)HotPath_timed_backward, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject HotPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "laggard._native.HotPath",
    .tp_basicsize = sizeof(HotPath),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)HotPath_init,
    .tp_traverse = (traverseproc)HotPath_traverse,
    .tp_clear = (inquiry)HotPath_clear,
    .tp_dealloc = (destructor)HotPath_dealloc,
    .tp_methods = HotPath_methods,
    .tp_members = HotPath_members,
    .tp_getset = HotPath_attributes,
};

static int execute(PyObject *module) {
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&name_num_yielded, "_num_yielded"},
        {&name_loader, "_laggard_loader"},
        {&name_call, "__call__"},
        {&name_training, "training"},
        {&name_running, "running"},
        {&name_is_compiling, "_is_compiling_flag"},
        {&name_accumulate_grad, "accumulate_grad"},
    };
    for (size_t index = 0; index < sizeof(names) / sizeof(*names); index++) {
        *names[index].name = PyUnicode_InternFromString(names[index].text);
        if (*names[index].name == NULL) return -1;
    }
    if (PyType_Ready(&TimedType) < 0 || PyType_Ready(&HotPathType) < 0) return -1;
    return PyModule_AddObjectRef(module, "HotPath", (PyObject *)&HotPathType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "laggard._native", .m_size = 0, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
