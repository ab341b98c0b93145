"""General Agent: databases behind MCP tools, graded on the state that is left (spec section 7)."""

from rufus_core.gym.mcp_world import McpWorldGym
from rufus_core.ports.gym import Gym
from rufus_core.stages.stage import GymContext, Stage


def open_gym(context: GymContext) -> Gym:  # noqa: ARG001 - worlds have no settings
    return McpWorldGym()


STAGE = Stage("general_agent", families=("shop", "library", "calendar"), open_gym=open_gym)
