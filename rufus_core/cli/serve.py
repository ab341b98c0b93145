"""`rufus serve`: a checkpoint behind SGLang's protocol, on this machine."""

from __future__ import annotations

import contextlib
import signal
from typing import Annotated

import typer

from rufus_core.cli.parts import Home, Shared

MAX_PORT = 65535
Checkpoint = Annotated[
    str, typer.Argument(help="A stage, a stage and step (coding_rl@12), digits of a digest, an alias, or a directory.")
]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads; by default torch's choice.")]
Context = Annotated[
    int | None, typer.Option(min=2, metavar="N", help="Tokens of the context; by default and at most the model's own.")
]


def serve(
    checkpoint: Checkpoint,
    host: Annotated[str, typer.Option(help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=MAX_PORT, help="The port; 0 takes a free one.")] = 30000,
    max_batch: Annotated[int, typer.Option(min=1, metavar="N", help="Requests that are decoded side by side.")] = 64,
    max_requests: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests that run or wait; more are told to come again.")
    ] = 1024,
    context: Context = None,
    threads: Threads = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RUFUS_API_KEY", help="Ask clients for it, as Authorization: Bearer KEY.")
    ] = None,
    expose: Annotated[bool, typer.Option("--expose", help="Allow a host that other machines can reach.")] = False,
    home: Home = None,
    shared: Shared = None,
) -> None:
    """Serve a checkpoint until Ctrl-C: SGLang's native endpoints and OpenAI's chat completions."""
    from rufus_core.cli.checkpoint import find_checkpoint
    from rufus_core.errors import ConfigError
    from rufus_core.rollout.server.loopback import is_loopback
    from rufus_core.rollout.server.run import ServerOptions
    from rufus_core.rollout.server.run import serve as serve_until_told

    if not is_loopback(host) and not expose:
        raise ConfigError(
            f"other machines could reach {host}, and whoever does can change the weights",
            hint="leave out --host, or add --expose and --api-key",
        )
    name, folder = find_checkpoint(checkpoint, home, shared)
    typer.echo(f"Loading {name} ...")

    def ready(address: str) -> None:
        key = " -H 'Authorization: Bearer KEY'" if api_key else ""
        typer.echo(f"{name}: {address}")
        typer.echo(f"  curl {address}/model_info{key}")
        typer.echo(
            f"  curl {address}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n"
            '    -d \'{"messages": [{"role": "user", "content": "hello"}]}\''
        )
        typer.echo("Ctrl-C stops it.")

    options = ServerOptions(host, port, max_batch, max_requests, context, threads, api_key)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        serve_until_told(folder, name, options, ready)
    typer.echo("Stopped.")
