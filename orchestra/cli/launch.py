"""`orchestra launch`: training on several machines as a job of a cluster's scheduler."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestra.cli.common import can_be_written, refuse_unused, workspace
from orchestra.errors import ConfigError, ServiceError

SUBMIT = {"slurm": ["sbatch"], "kubernetes": ["kubectl", "create", "-f"]}


def launch(
    context: typer.Context,
    on: Annotated[Literal["slurm", "kubernetes"], typer.Option(help="The scheduler.")],
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines.")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs per machine.")] = 8,
    hours: Annotated[int, typer.Option(min=1, help="The time limit of the job, in hours.")] = 24,
    image: Annotated[str, typer.Option(help="Kubernetes: the image that has this package installed.")] = "",
    claim: Annotated[str, typer.Option(help="Kubernetes: the volume claim that holds the workspace.")] = "",
    secret: Annotated[
        str,
        typer.Option(help="Kubernetes: the Secret with the real experts' variables: keys and addresses."),
    ] = "",
    submit: Annotated[bool, typer.Option("--submit", help="Submit the job to the scheduler.")] = False,
    out: Annotated[
        Path | None, typer.Option(callback=can_be_written, help="The file to write; default: the screen.")
    ] = None,
) -> None:
    """Write a job that trains params.yaml's model on several machines; --submit submits it to the scheduler."""
    from orchestra.cli.readiness import expert_variables
    from orchestra.config.schema import load_params, params_file
    from orchestra.files import atomic
    from orchestra.system.jobs import Machines, Pod, resume_command, sbatch_script, spread, train_job

    here, root, machines = Path.cwd(), workspace(), Machines(nodes, gpus, hours)
    params = load_params(params_file(root))
    if on == "slurm":
        refuse_unused(context, ["image", "claim", "secret"], "with --on slurm")
        text = sbatch_script(params, machines)
    else:
        for value, option in ((image, "--image"), (claim, "--claim")):
            if not value:
                raise ConfigError("a Kubernetes TrainJob needs this option", where=option, fix=f"give {option} NAME")
        variables = expert_variables(root, params) if secret else ()
        text = train_job(params, machines, Pod(image, claim, secret, variables))
    if out is not None:
        out = here / out
    elif submit:
        out = root / ("work/launch.sbatch" if on == "slurm" else "work/launch.yaml")
    if out is None:
        typer.echo(text, nl=False)
    else:
        atomic.write_text(out, text)
        typer.echo(f"{out}: written")
        if submit:
            _submit([*SUBMIT[on], str(out)])
    for stage in spread(params, machines)[1:] if on == "kubernetes" else ():
        typer.echo(f"{stage} waits: once the stage before it has ended, {resume_command(params, stage)}", err=True)


def _submit(command: list[str]) -> None:
    """Raises `ServiceError` where the scheduler's command is missing or refuses."""
    import shutil
    import subprocess

    if shutil.which(command[0]) is None:
        raise ServiceError(
            f"{command[0]} is not installed", where="launch", fix="submit the written file on a machine that has it"
        )
    ended = subprocess.run(command, check=False)
    if ended.returncode:
        raise ServiceError(
            f"{command[0]} refused (exit code {ended.returncode})", where="launch", fix="read its output above"
        )
