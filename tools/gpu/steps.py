"""Steps that can be resumed: each is a command with a time limit and a log, and what it gave is kept in a file, so that a
later call begins after the last step that ended."""

import datetime
import json
import os
import shlex
import signal
import subprocess
import time

# What a command that is stopped gets to end by itself.
GRACE = 5
# A step with less time than this is left for the next call.
SHORTEST = 15


class OutOfTime(Exception):
    """The call's time has ended; the next call goes on."""


class Steps:
    """The steps of one part, in `folder`/PART.json; `seconds_left()` is what remains of the call."""

    def __init__(self, folder, part, deadline, environment=None, fresh=False):
        self.folder, self.part, self.deadline = folder, part, deadline
        self.environment = environment or {}
        self.file = folder / f"{part}.json"
        self.done = {} if fresh or not self.file.exists() else json.loads(self.file.read_text())
        folder.mkdir(parents=True, exist_ok=True)

    def seconds_left(self):
        return self.deadline - time.monotonic()

    def ended_well(self, name):
        return self.done.get(name, {}).get("state", "failed") not in ("failed", "stopped")

    def run(self, name, command, read=None, again=False, states=None, environment=None):
        """Runs the command unless the step has ended well before, and keeps what read(log text) gives. Returns the record.
        `states` names exit codes that are results, beside 0, which is "done". A step with another exit code has failed, and
        the next call tries it anew."""
        if self.ended_well(name) and not again:
            print(f"   {self.part} {name}: done before", flush=True)
            return self.done[name]
        left = self.seconds_left()
        if left < SHORTEST:
            raise OutOfTime(f"{self.part} {name}")
        print(f"-- {self.part} {name}: {shlex.join(map(str, command))}", flush=True)
        log = self.folder / f"{self.part}-{name.replace(' ', '-').replace('/', '-')}.log"
        start = time.monotonic()
        code = self._call([str(each) for each in command], log, left, {**self.environment, **(environment or {})})
        state = "stopped" if code is None else {0: "done", **(states or {})}.get(code, "failed")
        record = {"state": state, "exit_code": code, "seconds": round(time.monotonic() - start, 1),
                  "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                  "command": shlex.join(map(str, command)), "log": log.name}
        text = log.read_text(errors="replace")
        if read is not None and state in ("done", "failed"):
            record["result"] = self._read(read, text, record)
        if record["state"] != "done":
            record["end_of_log"] = text[-1500:]
            print(f"   {self.part} {name}: {record['state']}; the log is {log}\n{text[-1500:]}", flush=True)
        self.done[name] = record
        self.save()
        if code is None:
            raise OutOfTime(f"{self.part} {name}")
        return record

    def note(self, name, result):
        """A result that no command gave."""
        self.done[name] = {"state": "done", "result": result}
        self.save()

    def save(self):
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(self.done, indent=1))
        beside.replace(self.file)

    @staticmethod
    def _read(read, text, record):
        try:
            return read(text)
        except (ValueError, KeyError, LookupError) as error:
            record["state"] = "failed"
            return {"unreadable": str(error)}

    @staticmethod
    def _call(command, log, seconds, environment):
        """The exit code; None if the command was stopped, with all programs that it has started."""
        with open(log, "w", encoding="utf-8") as text:
            try:
                process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT, start_new_session=True,
                                           env={**os.environ, **environment})
            except OSError as error:
                text.write(f"{command[0]} does not start: {error}\n")
                return 127
            for stop, wait in ((None, seconds), (signal.SIGINT, GRACE), (signal.SIGKILL, GRACE)):
                if stop is not None:
                    os.killpg(process.pid, stop)
                try:
                    code = process.wait(wait)
                    return code if stop is None else None
                except subprocess.TimeoutExpired:
                    continue
        return None
