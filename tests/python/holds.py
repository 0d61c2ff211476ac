"""Holds a cluster's actors where a test needs them, as docs/repl.md ("Hold an actor") says, so that no test has to be in time."""
import json
import subprocess
import time

PATIENCE = 300.0  # seconds until something that is waited for is taken for lost


class Holds:
    """The console of the cluster at `endpoint`; `options`: further ones of `troupe repl`."""

    def __init__(self, troupe, endpoint, *options, env=None):
        self.command = [troupe, "repl", "--json", "--connect", endpoint, *options, "-c"]
        self.env = env

    def console(self, *commands):
        """What each of these prints."""
        done = subprocess.run([*self.command, "; ".join(commands)], env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise AssertionError(f"{commands}: {done.stdout}{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def actors(self):
        return self.console("actors")[0]["actors"]

    def hold(self, *actors, at):
        """Lets them stand still when a job comes there. Of those that are held already it is the next hold."""
        self.console(*(f"inject hold {actor} 3600 {at}" for actor in actors))

    def held(self, *actors):
        """Waits until one of them is held."""
        until = time.monotonic() + PATIENCE
        while not any(row["doing"].endswith("(held)") for row in self.actors() if row["id"] in actors):
            if time.monotonic() > until:
                raise AssertionError(f"none of the actors {actors} is held: {self.actors()}")
            time.sleep(0.05)

    def go_on(self, *actors, at):
        """Waits until one of them is held, and lets it go on to the next place."""
        self.held(*actors)
        self.hold(*actors, at=at)
        self.release(*actors)

    def release(self, *actors):
        """Lets them go on; of those that are not held, takes back the hold to come."""
        self.console(*(f"inject release {actor}" for actor in actors))
