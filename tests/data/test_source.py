import pytest

from bhc.data.sources import Tolerant, Unavailable, obtain
from bhc.errors import BhcError

from .tiny import CONTENTS, FILES, Failing, Giving


def test_the_first_source_that_has_the_files_is_used():
    first, second = Giving(), Giving()
    assert obtain("tiny", FILES, sources=(Failing(), first, second)) == CONTENTS
    assert (first.asked, second.asked) == (1, 0)


def test_the_error_names_every_source_and_why():
    sources = (Failing(title="here"), Failing(Unavailable("no answer"), title="there"))
    with pytest.raises(BhcError) as caught:
        obtain("tiny", FILES, sources=sources)
    assert caught.value.problem == (
        "no source gives the data set 'tiny':\n  - here: out of order\n  - there: no answer"
    )
    assert "FOLDER/tiny and set BHC_DATA=FOLDER" in caught.value.hint
    assert all(file.name in caught.value.hint for file in FILES)


def test_damage_stops_the_search():
    unasked = Giving()
    with pytest.raises(BhcError, match="damaged"):
        obtain("tiny", FILES, sources=(Failing(BhcError("damaged")), unasked))
    assert unasked.asked == 0


def test_a_tolerant_source_warns_of_damage_and_is_passed_over(caplog):
    tolerant = Tolerant(Failing(BhcError("file is damaged", hint="none"), title="that place"))
    with pytest.raises(Unavailable, match="file is damaged"):
        tolerant.fetch(FILES)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].name == "bhc.data"
    assert caplog.messages == ["that place is passed over: file is damaged"]


def test_a_tolerant_source_is_silent_where_nothing_is_there(caplog):
    with pytest.raises(Unavailable, match="out of order"):
        Tolerant(Failing()).fetch(FILES)
    assert caplog.messages == []
