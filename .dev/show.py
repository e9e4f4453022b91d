import json,sys
d=json.load(open(sys.argv[1]))
v=d['verdict']; print(v['bottleneck'],v['level'],v.get('certain'),v['starved'], v['culprit'])
for p in d['waterfall']: print('   ',p['stage'],p['links'],p['ms'],f"{p['share']:.2f}", p['without'])
for w in d['session']['windows']:
    a=w.get('account') or {}
    e=w['evidence']
    print(f"{w['rung']:12} r{w['round']} {w['steps']:4} {1000*w['seconds']/w['steps']:7.2f} = cpu {a.get('cpu_ms',0):7.2f} q {a.get('queue_ms',0):6.2f} w {a.get('waits_ms',0):6.2f} o {a.get('other_ms',0):6.2f} | ncpu {a.get('next_cpu_ms',0):5.2f} tcpu {a.get('threads_cpu_ms',0):6.2f} tq {a.get('threads_queue_ms',0):6.2f} st {a.get('steal',0):.3f} | wait {e.get('wait_ms',0):6.2f} busy {e.get('cores_busy',0):.2f} used {e.get('cores_used',0):.2f} wms {e.get('worker_ms',0):.1f} wcpu {e.get('worker_cpu',0):.2f} wq {e.get('worker_queued',0):.2f}")
for w in d['warnings']: print(w['code'],w['message'][:150])
