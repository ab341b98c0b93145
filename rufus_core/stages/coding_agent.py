"""Coding Agent: terminal problems with one command tool, graded by their tests on the final state (spec section 8)."""

from rufus_core.gym.terminal import TerminalGym
from rufus_core.ports.gym import Gym
from rufus_core.stages.stage import GymContext, Stage


def open_gym(context: GymContext) -> Gym:
    tools = context.settings.tools
    assert tools is not None
    return TerminalGym(tools, context.sessions())


STAGE = Stage("coding_agent", families=("terminal",), open_gym=open_gym)
