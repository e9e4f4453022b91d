import sys,multiprocessing as mp,time
def f():
    while True: pass
if __name__=="__main__":
    ps=[mp.Process(target=f,daemon=True) for _ in range(int(sys.argv[1]))]
    [p.start() for p in ps]; time.sleep(float(sys.argv[2]))
