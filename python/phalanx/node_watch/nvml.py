"""The calls of NVML (libnvidia-ml.so.1) that are needed, declared here. An old driver may lack any of them."""

import ctypes

SUCCESS, NOT_SUPPORTED, TIMEOUT, GPU_IS_LOST = 0, 3, 10, 15
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_DRIVER_START = 0  # "volatile"
_XID_CRITICAL = 8
_DOUBLE_BIT = 2
# Why clocks are lower than they could be, of nvmlDeviceGetCurrentClocksThrottleReasons.
_SLOWED_BY = {"hw_slowdown": 0x08, "hw_thermal": 0x40, "power_brake": 0x80}


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),  # of an XID: its number
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Unwatched(Exception):
    """Why there is nothing to watch."""


class Nvml:
    def __init__(self, name="libnvidia-ml.so.1"):
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise Unwatched(str(error)) from None
        self._need("nvmlInit_v2", [])
        self.devices = self._devices()
        self._events = None
        self.listen()

    @property
    def tells_xids(self):
        return self._events is not None

    def listen(self):
        """Has the driver tell of XIDs, anew where it did before: of the GPUs that take it, which a lost one does not.
        `tells_xids` says whether there are any."""
        if self._events is not None:
            self._call("nvmlEventSetFree", self._events)
        self._events = self._register()

    def values(self):
        """[(gpu, name, value)] of all that this driver can say now."""
        told = []
        for gpu, device in enumerate(self.devices):
            lost = 0
            for names, values in (self._ecc(device), self._remapped(device), self._slowed(device)):
                lost |= values == GPU_IS_LOST
                told += [(gpu, *each) for each in zip(names, values)] if isinstance(values, list) else []
            told.append((gpu, "gpu_lost", int(lost)))
        return told

    def wait(self, limit_ms):
        """(gpu, XID) when the driver tells of one; None when the time is over, or something else was told of. What
        NVML answers else is raised as Unwatched."""
        event = _Event()
        code = self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(limit_ms))
        if code == TIMEOUT:
            return None
        if code != SUCCESS:
            raise Unwatched(f"nvmlEventSetWait_v2 answers {code}")
        if not event.type & _XID_CRITICAL or event.device not in self._index:
            return None
        return self._index[event.device], event.data

    def _call(self, name, *arguments):
        function = self._function(name)
        return NOT_SUPPORTED if function is None else function(*arguments)

    def _function(self, name):
        """None: an old driver's library does not have it."""
        try:
            return getattr(self._library, name)
        except AttributeError:
            return None

    def _need(self, name, arguments):
        code = self._call(name, *arguments)
        if code != SUCCESS:
            raise Unwatched(f"NVML's {name} answers {code}")

    def _devices(self):
        count = ctypes.c_uint()
        self._need("nvmlDeviceGetCount_v2", [ctypes.byref(count)])
        devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            # One that cannot be had keeps its place.
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            devices.append(device)
        self._index = {device.value: index for index, device in enumerate(devices) if device.value}
        return devices

    def _register(self):
        events = ctypes.c_void_p()
        if not self._index or self._function("nvmlEventSetWait_v2") is None:
            return None
        if self._call("nvmlEventSetCreate", ctypes.byref(events)) != SUCCESS:
            return None
        registered = 0
        for device in self.devices:
            for types in (_XID_CRITICAL | _DOUBLE_BIT, _XID_CRITICAL):  # a GPU without ECC refuses the first
                wanted = ctypes.c_ulonglong(types)
                if device.value and self._call("nvmlDeviceRegisterEvents", device, wanted, events) == SUCCESS:
                    registered += 1
                    break
        if not registered:
            self._call("nvmlEventSetFree", events)
        return events if registered else None

    # Each of these: names and their values; or a code in the values' place, where the driver cannot say.

    def _ecc(self, device):
        counts = []
        for kind in (_UNCORRECTED, _CORRECTED):
            count = ctypes.c_ulonglong()
            code = self._call("nvmlDeviceGetTotalEccErrors", device, kind, _SINCE_DRIVER_START, ctypes.byref(count))
            if code != SUCCESS:
                return (), code
            counts.append(count.value)
        return ("ecc_uncorrected", "ecc_corrected"), counts

    def _remapped(self, device):
        corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
        answers = [ctypes.byref(each) for each in (corrected, uncorrected, pending, failed)]
        code = self._call("nvmlDeviceGetRemappedRows", device, *answers)
        return ("remap_pending", "remap_failed"), [pending.value, failed.value] if code == SUCCESS else code

    def _slowed(self, device):
        reasons = ctypes.c_ulonglong()
        code = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", device, ctypes.byref(reasons))
        if code != SUCCESS:
            return (), code
        return tuple(_SLOWED_BY), [int(bool(reasons.value & bit)) for bit in _SLOWED_BY.values()]
