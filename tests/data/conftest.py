import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own, and no folder of the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BHC_CACHE", str(folder))
    monkeypatch.delenv("BHC_DATA", raising=False)
    return folder
