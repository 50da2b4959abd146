from megalith.ps import health


def test_the_memory_of_this_process_is_known():
    assert 10 * 2**20 < health.resident_bytes() < 2**40


def test_over_its_limit_a_ps_complains_in_the_reference_s_words(monkeypatch):
    monkeypatch.setattr(health, "resident_bytes", lambda: 900)
    assert health.check(0).complaint == ""
    assert health.check(901).complaint == ""
    assert health.check(900).complaint == "Memory limit exceeded. Current: 900, Limit: 900"
