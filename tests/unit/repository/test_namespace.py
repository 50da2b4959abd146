from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("root", ["services", "client"])
def test_neither_root_makes_megalith_a_regular_package(root):
    """An __init__.py there would make the other root vanish at import, silently."""
    assert not (ROOT / root / "megalith" / "__init__.py").exists()


def test_both_roots_are_importable_as_one_namespace():
    import megalith.runtime
    import megalith.wire

    assert (
        len(
            {
                Path(megalith.wire.__file__).parents[2].name,
                Path(megalith.runtime.__file__).parents[2].name,
            }
        )
        == 2
    )


def test_every_sub_package_is_typed():
    packages = [
        path.parent
        for root in ("services", "client")
        for path in ROOT.glob(f"{root}/megalith/*/__init__.py")
    ]
    assert packages
    assert [package for package in packages if not (package / "py.typed").exists()] == []
