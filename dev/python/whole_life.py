"""The whole life of a sandbox, run by Daytona's own SDK against the Daytona that the environment names.

Called with `sync` or `async`: the form of the SDK. Each step prints a line; the first that is not as it should be
ends the run with its traceback, and so does one that never ends.
"""

import asyncio
import faulthandler
import inspect
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import daytona
from daytona import (
    CodeRunParams,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaConfig,
    DaytonaError,
    FileDownloadRequest,
    FileUpload,
    ListSandboxesQuery,
    Resources,
    SandboxState,
    SessionExecuteRequest,
)

LIMIT_SECONDS = 300
SNAPSHOT = "with-tools"
LANGUAGE = "code-toolbox-language"

loop = asyncio.new_event_loop()


def do(value):
    """What a call gives, in either form of the SDK."""
    if inspect.isawaitable(value):
        return loop.run_until_complete(value)
    if inspect.isasyncgen(value):
        return loop.run_until_complete(collect(value))
    return list(value) if inspect.isgenerator(value) else value


async def collect(items):
    return [item async for item in items]


def step(name):
    print(name, flush=True)


def equal(actual, expected):
    assert actual == expected, f"{actual!r} is not {expected!r}"


def refused(kind, call, status, said):
    """The call is refused, with this class of the SDK, this status and these words."""
    try:
        do(call())
    except DaytonaError as error:
        assert type(error) is kind, f"{type(error).__name__} is not {kind.__name__}: {error!r}"
        equal(error.status_code, status)
        assert said in str(error), f"{said!r} is not in {str(error)!r}"
        return error
    raise AssertionError(f"not refused: {said}")


def creating(client):
    step("create: nothing said")
    plain = do(client.create())
    equal(plain.state, SandboxState.STARTED)
    equal((plain.auto_stop_interval, plain.auto_archive_interval, plain.auto_delete_interval), (15, 10080, -1))
    equal((plain.name, plain.labels, plain.user), (plain.id, {LANGUAGE: "python"}, "daytona"))
    equal((plain.kvm, plain.network_block_all, plain.public, plain.gpu), (False, False, False, 0))
    do(client.delete(plain, wait=True))

    step("create: all said, from a named snapshot")
    params = CreateSandboxFromSnapshotParams(
        name="life",
        snapshot=SNAPSHOT,
        env_vars={"GREETING": "grüße"},
        labels={"kind": "main"},
        auto_stop_interval=7,
        auto_archive_interval=60,
        auto_delete_interval=120,
    )
    box = do(client.create(params))
    equal((box.name, box.snapshot, box.env), ("life", SNAPSHOT, {"GREETING": "grüße"}))
    equal((box.auto_stop_interval, box.auto_archive_interval, box.auto_delete_interval), (7, 60, 120))
    equal(box.labels, {"kind": "main", LANGUAGE: "python"})

    step("create: from an image, with resources")
    params = CreateSandboxFromImageParams(image="debian:12", resources=Resources(cpu=2, memory=3, disk=4))
    built = do(client.create(params))
    equal((built.state, built.cpu, built.memory, built.disk), (SandboxState.STARTED, 2, 3, 4))
    equal((built.snapshot, built.build_info.dockerfile_content), (None, "FROM debian:12\n"))
    do(client.delete(built))
    return box


def finding(client, box):
    step("get: by id and by name")
    for key in (box.id, "life"):
        found = do(client.get(key))
        equal((found.id, found.name, found.state), (box.id, "life", SandboxState.STARTED))

    step("list: by label, over pages")
    others = [do(client.create(CreateSandboxFromSnapshotParams(labels={"kind": "other"}))) for _ in range(3)]
    query = ListSandboxesQuery(labels={"kind": "other"}, limit=2)
    equal({found.id for found in do(client.list(query))}, {other.id for other in others})
    equal([found.name for found in do(client.list(ListSandboxesQuery(name="LIF")))], ["life"])
    stopped = ListSandboxesQuery(states=[SandboxState.STOPPED])
    equal(do(client.list(stopped)), [])
    day, now = timedelta(days=1), datetime.now(timezone.utc)
    every = ListSandboxesQuery(
        id=box.id[:8].upper(),
        states=[SandboxState.STARTED, SandboxState.STOPPED],
        snapshots=[SNAPSHOT, "other"],
        targets=[box.target],
        min_cpu=1,
        max_cpu=1,
        min_memory_gib=1,
        max_memory_gib=1,
        min_disk_gib=3,
        max_disk_gib=3,
        is_public=False,
        is_recoverable=False,
        created_at_after=now - day,
        created_at_before=now + day,
        last_activity_after=now - day,
        last_activity_before=now + day,
        sort=daytona.SandboxListSortField.NAME,
        order=daytona.SandboxListSortDirection.ASC,
    )
    equal([found.name for found in do(client.list(every))], ["life"])
    for other in others:
        do(other.delete(wait=True))
    equal([found.id for found in do(client.list())], [box.id])


def settings(client, box):
    step("set: labels replace")
    equal(do(box.set_labels({"new": "1"})), {"new": "1"})
    equal(do(client.get(box.id)).labels, {"new": "1"})

    step("set: network; a snapshot is made")
    do(box.update_network_settings(network_allow_list="10.0.0.0/8"))
    do(box.refresh_data())
    equal((box.network_block_all, box.network_allow_list), (False, "10.0.0.0/8"))
    do(box.create_snapshot("made"))
    made = do(client.create(CreateSandboxFromSnapshotParams(snapshot="made", ephemeral=True)))
    equal((made.snapshot, made.auto_delete_interval), ("made", 0))
    do(made.delete(wait=True))

    step("set: intervals, TTL, public; activity is reported")
    do(box.set_auto_pause_interval(0))
    do(box.set_autostop_interval(30))
    do(box.set_auto_archive_interval(0))
    do(box.set_auto_delete_interval(-1))
    do(box.set_ttl(600))
    do(box.set_public(True))
    before = do(client.get(box.id))
    equal((before.auto_stop_interval, before.auto_archive_interval, before.auto_delete_interval), (30, 43200, -1))
    equal((before.public, before.auto_destroy_at is not None), (True, True))
    do(box.refresh_activity())
    do(box.refresh_data())
    assert box.last_activity_at >= before.last_activity_at
    do(box.set_ttl(0))
    do(box.refresh_data())
    equal(box.auto_destroy_at, None)


def one_shots(box):
    step("paths: work and home directory")
    home = do(box.get_user_home_dir())
    equal((do(box.get_work_dir()), do(box.process.exec("pwd")).result), (home, home + "\n"))

    step("exec: exit code, output, working directory, environment")
    answer = do(box.process.exec("echo out; echo err >&2; exit 3"))
    equal((answer.exit_code, answer.result, answer.artifacts.stdout), (3, "out\nerr\n", "out\nerr\n"))
    do(box.process.exec("mkdir -p below"))
    equal(do(box.process.exec("pwd", cwd="below")).result, f"{home}/below\n")
    given = do(box.process.exec('echo "$GREETING $MORE"', env={"MORE": "more"}))
    equal(given.result, "grüße more\n")

    step("exec: a timeout is one")
    refused(daytona.DaytonaTimeoutError, lambda: box.process.exec("sleep 1000", timeout=1), 408, "command execution timeout")


    step("code_run: arguments, environment, exit code")
    code = "import os, sys; print(sys.argv[1:], os.environ['MORE']); sys.exit(5)"
    # The service joins the arguments with blanks.
    ran = do(box.process.code_run(code, CodeRunParams(argv=["a b"], env={"MORE": "more"})))
    equal((ran.exit_code, ran.result, ran.artifacts.charts), (5, "['a', 'b'] more\n", []))


def sessions(box):
    process = box.process
    step("session: create, get, list")
    do(process.create_session("s"))
    refused(daytona.DaytonaConflictError, lambda: process.create_session("s"), 409, "session already exists")
    equal((do(process.get_session("s")).session_id, do(process.get_session("s")).commands), ("s", []))
    equal([session.session_id for session in do(process.list_sessions())], ["s"])

    step("session: a command that is waited for")
    text = "cd below; X=kept; echo out; echo err >&2; (exit 4)"
    ran = do(process.execute_session_command("s", SessionExecuteRequest(command=text)))
    equal((ran.exit_code, ran.stdout, ran.stderr), (4, "out\n", "err\n"))
    kept = do(process.execute_session_command("s", SessionExecuteRequest(command='echo "$X" "${PWD##*/}"')))
    equal((kept.exit_code, kept.stdout), (0, "kept below\n"))
    known = do(process.get_session_command("s", ran.cmd_id))
    equal((known.id, known.command, known.exit_code), (ran.cmd_id, text, 4))

    step("session: a command that runs on, is given input, and its log")
    asks = SessionExecuteRequest(command='echo ready; read -r line; echo "got $line"', run_async=True)
    running = do(process.execute_session_command("s", asks))
    equal((running.exit_code, do(process.get_session_command("s", running.cmd_id)).exit_code), (None, None))
    until(lambda: do(process.get_session_command_logs("s", running.cmd_id)).stdout == "ready\n")
    do(process.send_session_command_input("s", running.cmd_id, "a line"))
    until(lambda: exit_code(process, "s", running.cmd_id) == 0)
    logs = do(process.get_session_command_logs("s", running.cmd_id))
    assert "got a line\n" in logs.stdout, logs
    equal(logs.stderr, "")
    equal(len(do(process.get_session("s")).commands), 3)

    step("session: following a log to its end")
    out, err = [], []

    async def take(chunk):
        err.append(chunk)

    speaks = SessionExecuteRequest(command="echo one; sleep 0.3; echo two >&2; sleep 0.3; echo drei ü", run_async=True)
    running = do(process.execute_session_command("s", speaks))
    do(process.get_session_command_logs_async("s", running.cmd_id, out.append, take))
    equal(("".join(out), "".join(err)), ("one\ndrei ü\n", "two\n"))
    equal(do(process.get_session_command("s", running.cmd_id)).exit_code, 0)

    step("session: delete")
    do(process.delete_session("s"))
    refused(daytona.DaytonaNotFoundError, lambda: process.get_session("s"), 404, "session not found")
    equal(do(process.list_sessions()), [])


def exit_code(process, session, command):
    """What the command's record says; in the moment in which it is being written the daemon cannot read it."""
    try:
        return do(process.get_session_command(session, command)).exit_code
    except DaytonaError as error:
        if "failed to convert exit code" not in str(error):
            raise
        return None


def until(holds):
    """Asks until it holds; the limit of the whole run ends it."""
    while not holds():
        loop.run_until_complete(asyncio.sleep(0.02))


def files(box):
    fs = box.fs
    step("files: folder, upload of one and of several")
    do(fs.create_folder("data", "750"))
    do(fs.upload_file(b"alpha\nbeta\n", "data/one.txt"))
    with tempfile.TemporaryDirectory() as here:
        local = Path(here, "local")
        local.write_bytes(bytes(range(256)))
        do(fs.upload_files([FileUpload(b"gamma\n", "data/two.txt"), FileUpload(str(local), "data/sub/raw")]))

        step("files: list, info, permissions")
        equal(sorted(entry.name for entry in do(fs.list_files("data"))), ["one.txt", "sub", "two.txt"])
        do(fs.set_file_permissions("data/one.txt", mode="600"))
        info = do(fs.get_file_info("data/one.txt"))
        equal((info.name, info.size, info.is_dir, info.permissions), ("one.txt", 11, False, "0600"))
        equal(do(fs.get_file_info("data")).permissions, "0750")

        step("files: find in them, search by name, replace in them")
        found = do(fs.find_files("data", "gam"))
        equal([(match.line, match.content) for match in found], [(1, "gamma")])
        assert found[0].file.endswith("data/two.txt"), found
        listed = do(fs.search_files("data", "*.txt")).files
        equal(sorted(Path(path).name for path in listed), ["one.txt", "two.txt"])
        (replaced,) = do(fs.replace_in_files(["data/two.txt"], "gamma", "delta"))
        equal((replaced.success, do(fs.download_file("data/two.txt"))), (True, b"delta\n"))

        step("files: move, download of one and of several")
        do(fs.move_files("data/two.txt", "data/moved.txt"))
        equal(do(fs.download_file("data/moved.txt")), b"delta\n")
        copy = Path(here, "copy")
        do(fs.download_file("data/sub/raw", str(copy)))
        equal(copy.read_bytes(), bytes(range(256)))
        wanted = ("data/one.txt", "data/none")
        one, none = do(fs.download_files([FileDownloadRequest(source=path) for path in wanted]))
        equal((one.result, one.error, none.result), (b"alpha\nbeta\n", None, None))
        equal((none.error_details.status_code, none.error_details.error_code), (404, "FILE_NOT_FOUND"))
    missing = daytona.DaytonaNotFoundError
    refused(missing, lambda: fs.get_file_info("data/none"), 404, "")

    step("files: delete")
    do(fs.delete_file("data/moved.txt"))
    do(fs.delete_file("data", recursive=True))
    refused(missing, lambda: fs.list_files("data"), 404, "")


def lifecycle(client, box):
    step("stop, archive, start: files stay")
    do(box.fs.upload_file(b"kept", "kept"))
    do(box.stop())
    equal(box.state, SandboxState.STOPPED)
    asleep = "no IP address found. Is the Sandbox started?"
    refused(daytona.DaytonaBadRequestError, lambda: box.process.exec("true"), 400, asleep)
    do(box.archive())
    until(lambda: do(client.get(box.id)).state == SandboxState.ARCHIVED)
    do(box.start())
    equal((box.state, do(box.fs.download_file("kept"))), (SandboxState.STARTED, b"kept"))


def refusals(client, box, other):
    step("refusals: each has its class")
    refused(daytona.DaytonaNotFoundError, lambda: client.get("nobody"), 404, "nobody not found")
    taken = CreateSandboxFromSnapshotParams(name="life")
    refused(daytona.DaytonaConflictError, lambda: client.create(taken), 409, "name life already exists")
    unknown = CreateSandboxFromSnapshotParams(snapshot="nothing")
    refused(daytona.DaytonaBadRequestError, lambda: client.create(unknown), 400, "Snapshot nothing not found")
    refused(daytona.DaytonaAuthenticationError, lambda: other.get(box.id), 401, "Invalid credentials")
    unsupported = daytona.DaytonaUnprocessableEntityError
    refused(unsupported, lambda: box.pause(), 422, "Pausing is not supported")
    refused(unsupported, lambda: box.fork(), 422, "Forking is not supported")
    refused(daytona.DaytonaNotFoundError, lambda: box.resize(Resources(cpu=2)), 404, "Cannot POST")
    # A rule answers for this name.
    limited = refused(daytona.DaytonaRateLimitError, lambda: client.get("limited"), 429, "Too Many Requests")
    equal({name.lower(): value for name, value in limited.headers.items()}["retry-after-authenticated"], "7")


def ending(client, box):
    step("delete: the name is free at once, and nothing is left")
    do(client.delete(box))
    again = do(client.create(CreateSandboxFromSnapshotParams(name="life")))
    do(again.delete(wait=True))
    equal(again.state, SandboxState.DESTROYED)
    until(lambda: do(client.list()) == [])


def main(form):
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    if form == "async":
        asyncio.set_event_loop(loop)
    kind = {"sync": daytona.Daytona, "async": daytona.AsyncDaytona}[form]

    def connect(config=None):
        async def inside():
            return kind(config)

        return loop.run_until_complete(inside()) if form == "async" else kind(config)

    client = connect()
    box = creating(client)
    finding(client, box)
    settings(client, box)
    one_shots(box)
    sessions(box)
    files(box)
    lifecycle(client, box)
    other = connect(DaytonaConfig(api_key="wrong"))
    refusals(client, box, other)
    ending(client, box)
    for each in (client, other):
        if form == "async":
            do(each.close())
    step("done")


main(sys.argv[1])
