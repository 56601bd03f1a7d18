"""Runs commands by the official SDK and says how long each took: one order in JSON per line of stdin, one number of
seconds per line of stdout. The first number is for the sandbox and its session."""

import json
import sys
import time

from daytona import Daytona, SessionExecuteRequest

SESSION = "bench"


def main():
    start = time.perf_counter()
    sandbox = Daytona().create()
    process = sandbox.process
    process.create_session(SESSION)
    print(time.perf_counter() - start, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        start = time.perf_counter()
        if "session" in order:
            done = process.execute_session_command(SESSION, SessionExecuteRequest(command=order["session"]))
            process.get_session_command_logs(SESSION, done.cmd_id)
        else:
            done = process.exec(order["one-shot"])
        seconds = time.perf_counter() - start
        if done.exit_code != 0:
            sys.exit(f"exit code {done.exit_code}")
        print(seconds, flush=True)


main()
