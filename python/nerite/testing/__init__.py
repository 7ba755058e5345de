"""Which helpers are there for tests of programs that use an inference server?"""
