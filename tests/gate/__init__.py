"""How the tests are ordered, spread over processes and fitted into the time that CI has.

``groups`` names the unit of scheduling, ``rules`` says which groups every change must pass, ``plan`` puts the groups in
order, ``changes`` asks git what a commit touches, ``durations`` keeps how long each group takes, ``plugin`` does it.
"""
