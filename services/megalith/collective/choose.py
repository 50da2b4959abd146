"""Which collective library the ranks use. It is imported when it is chosen, and not earlier."""

from collections.abc import Mapping

from megalith.collective import horovod
from megalith.collective.engine import Engine, OneRank
from megalith.errors import InvalidSetting
from megalith.errors.extras import how_to_install

OFF = "off"
AUTO = "auto"
ONE = "one"
MPI = "mpi"
GLOO = "gloo"
HOROVOD = "horovod"
BYTEPS = "byteps"
COLLECTIVES = (AUTO, ONE, MPI, GLOO, HOROVOD, BYTEPS)

# What a launcher tells each of its processes: how many there are
_SIZE_BY_COLLECTIVE = {
    MPI: "OMPI_COMM_WORLD_SIZE",
    GLOO: "WORLD_SIZE",
    HOROVOD: "HOROVOD_SIZE",
    BYTEPS: "DMLC_NUM_WORKER",
}


def chosen(collective: str, environ: Mapping[str, str]) -> str:
    """The library that --collective names, or the one whose launcher has started this process.

    mpirun, torchrun and horovodrun tell a process how many there are. One alone needs no library.
    """
    if collective != AUTO:
        return collective

    for name in (HOROVOD, MPI, GLOO):
        if _size_in(environ, _SIZE_BY_COLLECTIVE[name]) > 1:
            if name == HOROVOD and horovod.module_name(environ).startswith(BYTEPS):
                return BYTEPS
            return name

    if horovod.module_name(environ).startswith(BYTEPS):
        return BYTEPS

    return ONE


def open_engine(collective: str, environ: Mapping[str, str], timeout_s: float) -> Engine:
    """The ranks that this process is one of.

    InvalidSetting if the library is missing, or counts other ranks than the launcher.
    """
    name = chosen(collective, environ)
    engine = _opened(name, timeout_s)
    variable = _SIZE_BY_COLLECTIVE.get(name, "")
    told = _size_in(environ, variable) or engine.size
    if told != engine.size:
        raise InvalidSetting(
            f"--collective={name}: {variable} is {told}, and the library counts {engine.size} "
            "ranks: the launcher is of another installation; for mpi use the mpirun beside this "
            "Python"
        )

    return engine


def _opened(name: str, timeout_s: float) -> Engine:
    if name == MPI:
        from megalith.collective.mpi import MpiEngine

        return MpiEngine(timeout_s)

    if name == GLOO:
        try:
            from megalith.collective.gloo import GlooEngine
        except ModuleNotFoundError as error:
            raise InvalidSetting(f"--collective=gloo: {how_to_install('torch', error)}") from error

        return GlooEngine(timeout_s)

    if name in (HOROVOD, BYTEPS):
        library = horovod.load_library(f"{name}.tensorflow")
        return horovod.HorovodEngine(library)

    return OneRank()


def _size_in(environ: Mapping[str, str], variable: str) -> int:
    """How many processes the launcher has started; 0 without one."""
    text = environ.get(variable, "")
    return int(text) if text.isdecimal() else 0
