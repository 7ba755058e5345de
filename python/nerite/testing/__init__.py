"""What helps to test a program that speaks to an inference server?"""
