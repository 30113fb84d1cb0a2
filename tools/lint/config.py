"""What the rules know about this project. Change a rule's reach here, and say why in the commit."""

# A function of more lines is an entry of ratchet.json, which may only shrink.
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 120

# Which folders of src/ (and simulation/, beside it), or which one header of them, the files of a folder may include,
# itself apart. A folder stands for those below it as well, "proto" for generated headers (phalanx/v1/...).
MAY_INCLUDE = {
    "base": set(),
    "base/crc": set(),
    "base/process": {"base"},
    "store": {"base"},
    "wire": {"base", "proto"},
    "replay": {"base", "proto"},
    "checkpoint/image": {"base"},
    "checkpoint/rank": {"base", "checkpoint/image"},
    "checkpoint/universal": {"base", "checkpoint/image", "checkpoint/rank/thread.h"},
    "checkpoint/files": {"base"},
    "checkpoint/memory": {"base", "checkpoint/files", "checkpoint/image", "checkpoint/rank"},
    "checkpoint/disk": {"base", "checkpoint/files", "checkpoint/image", "checkpoint/rank"},
    "checkpoint/storage": {"base", "checkpoint/disk", "checkpoint/files", "checkpoint/image"},
    "checkpoint/remote": {"base", "checkpoint/files"},
    "checkpoint/host": {
        "checkpoint/storage",
        "base",
        "checkpoint/disk",
        "checkpoint/files",
        "checkpoint/image",
        "checkpoint/memory",
        "checkpoint/rank",
    },
    "data": {"base"},
    "elasticity": {"base"},
    "agent/flags": {"base", "elasticity"},
    "agent/output": {"base", "agent/flags"},
    "agent/machine": {"base", "agent/flags", "agent/output"},
    "agent/core": {"base", "proto", "wire/limits.h"},
    "agent/report": {"base", "proto", "agent/core", "agent/flags"},
    "agent/workers": {"base", "proto", "agent/flags", "agent/machine", "agent/output"},
    "agent/checkpoint": {"base", "proto", "checkpoint", "agent/workers", "wire/limits.h"},
    "agent/checks": {"base", "proto", "agent/core", "agent/output", "agent/workers"},
    "agent/watch": {"base", "proto", "agent/output"},
    "agent/replay": {
        "base",
        "proto",
        "replay",
        "agent/checkpoint/checkpoints.h",
        "agent/checkpoint/saving.h",
        "agent/core",
    },
    "agent/node": {"base", "proto", "replay", "store", "wire", "agent"},
    "master/rules": {"base", "proto", "wire/limits.h"},
    "master/topics": {"base", "proto", "master/rules"},
    "master/core": {
        "base",
        "proto",
        "elasticity",
        "master/rules",
        "master/topics",
        "wire/limits.h",
        "wire/protocol.h",
    },
    "master/record": {"base"},
    "master/journal": {"base", "proto", "master/core", "master/rules", "master/topics", "wire/protocol.h"},
    "master/replay": {"base", "proto", "replay", "master/core", "master/journal", "wire/protocol.h"},
    "master/endpoint": {"base", "proto", "master/core", "wire"},
    "master/serve": {"base", "proto", "replay", "wire", "master"},
    "cli": {"base", "proto", "replay", "store", "wire", "checkpoint", "data", "elasticity", "agent", "master"},
    "fuzz": {"base"},
    "simulation": {"base", "proto", "agent", "checkpoint", "master", "wire/limits.h", "wire/protocol.h"},
}

# Pure logic: same input, same decisions, on every machine and in replay. Tests are left out. The head of each header
# here calls it pure, and each one that calls itself so is here, with its .cc.
CORES = (
    "src/agent/checkpoint/checkpoints*",
    "src/agent/checkpoint/saving.*",
    "src/agent/checkpoint/selection.*",
    "src/agent/checkpoint/shards.*",
    "src/agent/checkpoint/wire.*",
    "src/agent/checks/lines.*",
    "src/agent/core/*",
    "src/agent/flags/arg_parser.*",
    "src/agent/flags/completion.*",
    "src/agent/flags/flag_values.*",
    "src/agent/flags/flags.*",
    "src/agent/flags/slurm.*",
    "src/agent/flags/worker_env.*",
    "src/agent/machine/cpu_binding.*",
    "src/agent/node/progress.*",
    "src/agent/output/tracebacks.*",
    "src/agent/replay/*",
    "src/agent/report/*",
    "src/agent/watch/blame.*",
    "src/agent/watch/differ.*",
    "src/agent/watch/kinds.*",
    "src/agent/watch/texts.*",
    "src/agent/workers/ends.*",
    "src/agent/workers/lives.*",
    "src/agent/workers/spares.*",
    "src/base/crc/polynomial.*",
    "src/base/grpc_peer.*",
    "src/base/host_port.*",
    "src/base/reach.h",
    "src/base/traceback_text.*",
    "src/base/utf8.*",
    "src/wire/node_key.*",
    "src/checkpoint/disk/manifest.*",
    "src/checkpoint/host/request.*",
    "src/checkpoint/disk/archive.*",
    "src/checkpoint/disk/retention.*",
    "src/checkpoint/disk/shard_json.*",
    "src/checkpoint/image/file_table.*",
    "src/checkpoint/image/image*",
    "src/checkpoint/image/safetensors.*",
    "src/checkpoint/image/tensor_name.h",
    "src/checkpoint/image/zip_parts.*",
    "src/checkpoint/memory/pages.*",
    "src/checkpoint/remote/byte_ranges.*",
    "src/checkpoint/remote/image_request.*",
    "src/checkpoint/rank/frame.*",
    "src/checkpoint/rank/zip_frame.*",
    "src/checkpoint/rank/memory_names.*",
    "src/checkpoint/universal/zip_stream.*",
    "src/cli/check_rows.*",
    "src/cli/elasticity.*",
    "src/cli/elasticity_rows.*",
    "src/cli/hang.*",
    "src/cli/jobs.*",
    "src/cli/ledger.*",
    "src/cli/phase_text.*",
    "src/cli/replay.*",
    "src/cli/report.*",
    "src/cli/rows.*",
    "src/data/dtype.*",
    "src/data/index.*",
    "src/data/join_plan.*",
    "src/data/part.*",
    "src/data/sidecar.*",
    "src/elasticity/batch.*",
    "src/elasticity/config.*",
    "src/elasticity/job_sizes.*",
    "src/elasticity/plan.*",
    "src/elasticity/value.*",
    "src/master/core/*",
    "src/master/endpoint/first_bytes.*",
    "src/master/endpoint/live_clients.*",
    "src/master/endpoint/room.*",
    "src/master/journal/snapshot.*",
    "src/master/record/detail.*",
    "src/master/record/lost_rows.*",
    "src/master/record/recent_rows.*",
    "src/master/replay/*",
    "src/master/rules/*",
    "src/master/serve/shell_decisions.*",
    "src/master/topics/*",
    "src/replay/log.*",
    "src/replay/player.*",
    "src/replay/text.*",
    "src/store/engine*",
    "src/store/mux*",
    "src/store/request.*",
    "src/store/room.*",
)

# The simulated world depends on its seed alone: the same rules.
SIMULATED = (
    "simulation/event_queue*",
    "simulation/fault*",
    "simulation/judge*",
    "simulation/largest_world*",
    "simulation/machine*",
    "simulation/network*",
    "simulation/node_workers*",
    "simulation/random*",
    "simulation/saving*",
    "simulation/scenario*",
    "simulation/sim_*",
    "simulation/training*",
    "simulation/world*",
)

# Headers a core has no use for: clocks, randomness, threads, files, sockets.
HEADERS_NOT_IN_CORES = (
    "atomic barrier chrono condition_variable ctime fstream future iostream latch mutex random semaphore "
    "shared_mutex stop_token thread fcntl.h pthread.h time.h unistd.h "
    "base/event_loop.h base/net.h base/env.h base/log.h"
).split()
HEADER_FOLDERS_NOT_IN_CORES = ("sys/", "net/", "netinet/", "grpcpp/", "spdlog/")

# Who may read the wall clock: for what people read, for ages of files, which the kernel dates by it, and for the time
# limits of gRPC calls in programs that end soon.
WALL_CLOCK = (
    "src/base/clock.*",
    "src/agent/workers/board.cc",
    "src/agent/checkpoint/keeper.cc",
    "src/agent/node/event_writer.cc",
    "src/agent/node/joining.cc",
    "src/agent/node/shell.cc",
    "src/agent/watch/watcher.cc",
    "src/checkpoint/rank/saver.cc",
    "src/cli/*",
    "src/master/serve/server.cc",
)

# Where the C++ rules about doors to the world do not apply: the doors themselves.
CLOCK_DOOR = "src/base/clock."
ENVIRONMENT_DOOR = "src/base/env."

# Files that nothing includes because they are where a build or a person begins.
CPP_FOLDERS = ("src/", "simulation/")

CLANG_TIDY = "clang-tidy-14"
CLANG_FORMAT = "clang-format-14"

# What users import, and the tests that ./run test --all-torch runs (TESTS of tools/torches.py) with what they import.
OLDEST_PYTHON = (3, 8)
OLD_PYTHON = (
    "python/phalanx/*",
    "tests/checkpoint_agent.py",
    "tests/checkpoint_memory.py",
    "tests/conftest.py",
    "tests/control_page.py",
    "tests/harness.py",
    "tests/netns.py",
    "tests/node_check_agent.py",
    "tests/packages.py",
    "tests/pidfd.py",
    "tests/preparation.py",
    "tests/sameness/libraries.py",
    "tests/sameness/prefix.py",
    "tests/share.py",
    "tests/small_disk.py",
    "tests/store_client_suite.py",
    "tests/test_bootstrap_*.py",
    "tests/test_checkpoint_cuda.py",
    "tests/test_checkpoint_overlap.py",
    "tests/test_checkpoint_plan.py",
    "tests/test_checkpoint_save.py",
    "tests/test_failures.py",
    "tests/test_store_compat.py",
    "tests/test_venv.py",
    "tests/test_warm.py",
    "tests/workloads/*",
    "tests/zygote_agent.py",
    "tools/venv.py",
)
