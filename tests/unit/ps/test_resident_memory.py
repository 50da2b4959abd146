from megalith.ps import resident_memory


def test_the_memory_of_this_process_is_known():
    assert 10 * 2**20 < resident_memory.resident_bytes() < 2**40


def test_over_its_limit_a_ps_complains_in_monolith_s_words(monkeypatch):
    monkeypatch.setattr(resident_memory, "resident_bytes", lambda: 900)
    assert resident_memory.check(0).complaint == ""
    assert resident_memory.check(901).complaint == ""
    assert resident_memory.check(900).complaint == "Memory limit exceeded. Current: 900, Limit: 900"
