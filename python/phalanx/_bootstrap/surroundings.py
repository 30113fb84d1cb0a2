"""What imports go by that no Python shows to be read: C's environment, flags and libraries of the dynamic loader, and
functions of the standard library that modules take by name. The zygote remembers them behind what it imports ahead of
its turn; a rank compares before it gives that out."""

import itertools
import os
import sys

from phalanx._bootstrap import linux

ctypes = linux.ctypes

# What scripts put others in the place of, as gevent does, and what libraries keep at their import. Not what debuggers
# replace (os.fork, os.execv), which no import asks: the script would start them twice.
_TAKEN = (
    *("builtins.open", "importlib.import_module", "inspect.getsource", "multiprocessing.cpu_count"),
    *("os.cpu_count", "os.environ", "os.getenv", "os.process_cpu_count", "os.sched_getaffinity"),
    *("platform.machine", "platform.processor", "platform.system", "select.select", "socket.socket"),
    *("subprocess.Popen", "tempfile.gettempdir", "threading.Condition", "threading.Event", "threading.Lock"),
    *("threading.RLock", "threading.Thread", "threading.get_ident", "threading.local", "time.monotonic"),
    *("time.perf_counter", "time.sleep", "time.time", "time.time_ns"),
)

_RTLD_DI_LINKMAP = 2
_DT_NULL, _DT_STRTAB, _DT_SYMTAB, _DT_SONAME, _DT_GNU_HASH = 0, 5, 6, 14, 0x6FFFFEF5
_PLAIN_SYMBOLS = frozenset((0, 1, 2))  # of no type, objects, functions: to ask for others may run code
_ASKED_SYMBOLS = 8  # of each library: all of them are for all, or none


class Surroundings:
    """As they are when it is made."""

    def __init__(self):
        self._functions = [(name, *found) for name, found in ((name, _place_of(name)) for name in _TAKEN) if found]
        self._flags = sys.getdlopenflags()
        self._python_environment = os.environ
        self._c_environment = _pointer_to_c_environment()
        self._apart = self._unknown_to_python()
        self._head = _first_library()
        self._libraries = dict(_libraries(self._head))
        self._file_names = {_file_name(path) for path in self._libraries.values() if path}  # the program has none

    def why_not(self):
        """Why what is imported now might find others, or None."""
        for name, module, value in self._functions:
            if vars(module).get(name.rpartition(".")[2]) is not value:
                return f"the script has replaced {name}"
        if sys.getdlopenflags() != self._flags:
            return "the script has set other flags of the dynamic loader (sys.setdlopenflags)"
        return None

    def why_no_libraries(self):
        """The same of imports that load libraries."""
        for address, path in _libraries(self._head):
            if self._libraries.get(address) != path and self._is_taken_by_others(address, path):
                return f"the script has loaded {os.fsdecode(path)}, whose symbols libraries behind it take"
        return None

    def changed_variables(self):
        """Names of the variables that C has changed or that were put past os.environ: os.putenv, setenv."""
        now, before = self._unknown_to_python(), self._apart
        return sorted(
            name for name in {*now, *before} if (name in now, now.get(name)) != (name in before, before.get(name))
        )

    def _unknown_to_python(self):
        """{name: what C has, None where it has none} of the variables that os.environ has otherwise."""
        if self._c_environment is None:
            return {}
        known, found = self._python_environment._data, {}
        for entry in _entries(self._c_environment):
            name, _, value = entry.partition(b"=")
            found.setdefault(name, value)
        names = {name for name, value in found.items() if known.get(name) != value}.union(known.keys() - found.keys())
        return {os.fsdecode(name): found.get(name) for name in names}

    def _is_taken_by_others(self, address, path):
        """Whether libraries that are loaded behind it find it by its name, or its symbols among those for all."""
        sections = _sections(address)
        names = {_file_name(path), _text_in(sections, sections.get(_DT_SONAME))}
        return not names.isdisjoint(self._file_names) or any(map(_is_for_all, _symbols(sections)))


def _place_of(name):
    """(module, value) of a function that is there."""
    place, _, name = name.rpartition(".")
    module = sys.modules.get(place)
    return None if module is None or name not in vars(module) else (module, vars(module)[name])


def _pointer_to_c_environment():
    try:
        return ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ") if ctypes else None
    except ValueError:  # another C library
        return None


def _entries(pointer):
    """Up to the NULL."""
    for index in itertools.count() if pointer else ():
        entry = pointer[index]
        if entry is None:
            break
        yield entry


class _LinkMap(ctypes.Structure if ctypes else object):
    """struct link_map: all of it that <link.h> shows"""

    if ctypes:
        _fields_ = [
            *(("base", ctypes.c_size_t), ("path", ctypes.c_char_p), ("dynamic", ctypes.c_void_p)),
            *(("next", ctypes.c_void_p), ("previous", ctypes.c_void_p)),
        ]


class _Dynamic(ctypes.Structure if ctypes else object):
    """Elf64_Dyn"""

    if ctypes:
        _fields_ = [("tag", ctypes.c_int64), ("value", ctypes.c_uint64)]


class _Symbol(ctypes.Structure if ctypes else object):
    """Elf64_Sym"""

    if ctypes:
        _fields_ = [
            *(("name", ctypes.c_uint32), ("info", ctypes.c_uint8), ("other", ctypes.c_uint8)),
            *(("section", ctypes.c_uint16), ("value", ctypes.c_uint64), ("size", ctypes.c_uint64)),
        ]


def _first_library():
    """The address of the program's own link map; None where the loader tells of none, or not by 64 bits."""
    program = ctypes.CDLL(None) if ctypes and ctypes.sizeof(ctypes.c_void_p) == 8 else None
    if not hasattr(program, "dlinfo"):
        return None
    found = ctypes.c_void_p()
    failed = program.dlinfo(ctypes.c_void_p(program._handle), _RTLD_DI_LINKMAP, ctypes.byref(found))
    return None if failed else found.value


def _libraries(address):
    """(address, path) of each link map from that one on. Not by dl_iterate_phdr, which holds the loader's lock while it
    calls, and another thread may wait for that with the interpreter's."""
    while address is not None:
        library = _LinkMap.from_address(address)
        yield address, library.path
        address = library.next


def _file_name(path):
    return path.rpartition(b"/")[2]


def _sections(address):
    """{tag: value} of a library's dynamic section, with addresses where this process has them; "base": its own."""
    library = _LinkMap.from_address(address)
    found, place = {"base": library.base}, library.dynamic
    while place is not None:
        entry = _Dynamic.from_address(place)
        if entry.tag == _DT_NULL:
            break
        found[entry.tag] = entry.value
        place += ctypes.sizeof(_Dynamic)
    for tag in (_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH):
        if tag in found and found[tag] < library.base:
            found[tag] += library.base  # some loaders write the address there, some do not
    return found


def _text_in(sections, at):
    return None if at is None or _DT_STRTAB not in sections else ctypes.string_at(sections[_DT_STRTAB] + at)


def _symbols(sections):
    """(name, address) of some symbols that a library has for others: the first of each bucket of its hash table."""
    table = sections.get(_DT_GNU_HASH)
    if table is None or _DT_SYMTAB not in sections:
        return
    count, _, filters, _ = (ctypes.c_uint32 * 4).from_address(table)
    buckets = (ctypes.c_uint32 * count).from_address(table + 16 + 8 * filters)
    for index in itertools.islice(filter(None, buckets), _ASKED_SYMBOLS):
        symbol = _Symbol.from_address(sections[_DT_SYMTAB] + index * ctypes.sizeof(_Symbol))
        if symbol.info & 15 in _PLAIN_SYMBOLS:
            yield _text_in(sections, symbol.name), sections["base"] + symbol.value


def _is_for_all(symbol):
    """Whether a library that asks for that symbol is given this one (RTLD_GLOBAL)."""
    name, address = symbol
    try:
        found = ctypes.CDLL(None)[name.decode("latin-1")]
    except AttributeError:
        return False
    return ctypes.cast(found, ctypes.c_void_p).value == address
