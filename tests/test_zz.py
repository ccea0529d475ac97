import collections, sapg,ppo, pytest
import test_math as tm
from conftest import TINY_POPULATION, TINY
class S(set):
    def __init__(s): s.c=collections.Counter()
    def add(s,x): s.c[x]+=1
    def __ior__(s,o):
        for x in o: s.c[x]+=1
        return s
@pytest.mark.parametrize("flags", [None, "","--no-off-policy-mu --off-policy-ratio 3","--off-policy-coef 0.5 --critic-n-step 1 --gamma 0.9","--aggregation symmetric","--lstm --off-policy-ratio 2"])
def test_x(train, flags):
    out=[]
    for seed in (1,2,3,4):
        f=f"{TINY if flags is None else TINY_POPULATION} {flags or ''} --seed {seed}"; s=ppo if flags is None else sapg
        run=train(s,f)
        tm.set=S
        e,c=tm.expected_minibatches(run,s.parse_args(f.split()))
        tm.__dict__.pop('set')
        out.append(sorted(c.c.values())[:4]+[len(c.c)])
    print("RES",flags,out)
